"""Imports torchvision, also where its compiled operators are those of another build of torch."""

import importlib
from types import ModuleType

# Nothing here calls these two, but the import of torchvision names them.
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


_defined: list[object] = []


def torchvision() -> ModuleType:
    """The package torchvision, imported when it is first needed: it takes a second.

    A torchvision that was built for CUDA cannot load its operators beside a torch without CUDA.
    Data sets and classification models need none of them.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in OPERATORS:
        library.define(operator)  # type: ignore[no-untyped-call]
    _defined.append(library)  # what it defines goes with it
    return importlib.import_module("torchvision")
