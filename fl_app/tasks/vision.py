"""Imports torchvision, also where its compiled operators are those of another build of torch."""

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

# This package calls neither, but torchvision refers to both at its import.
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


_defined: list[object] = []


def torchvision() -> ModuleType:
    """The package torchvision, imported when it is first needed: it takes a second.

    Raises:
        ImportError: it is not installed.
    """
    tolerate()
    return importlib.import_module("torchvision")


def tolerate() -> None:
    """Let ``import torchvision`` succeed in this process without its compiled operators.

    A torchvision that was built for CUDA cannot load them beside a torch without CUDA. Data sets,
    transforms and classification models need none of them. `fl_app.field.packages` has every
    process of such an environment call this at its start, so this module imports nothing else.
    """
    present = {type(finder).__name__ for finder in sys.meta_path}  # perhaps of another copy
    if "torchvision" not in sys.modules and _Before.__name__ not in present:
        sys.meta_path.insert(0, _Before())


class _Before(MetaPathFinder):
    """Defines the operators that torchvision lacks, just before it is imported."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "torchvision" and not _defined:
            spec = PathFinder.find_spec(fullname)
            if spec is not None and spec.origin is not None:
                _define_missing(Path(spec.origin).parent)


def _define_missing(folder: Path) -> None:
    import torch

    try:
        (compiled,) = folder.glob("_C*.so")
        torch.ops.load_library(compiled)  # type: ignore[no-untyped-call]
    except (OSError, ValueError):
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in OPERATORS:
            library.define(operator)  # type: ignore[no-untyped-call]
        _defined.append(library)  # the definitions last as long as this object
