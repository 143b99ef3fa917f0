"""A task on folders of images, one for each class."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.tasks import own_data as own
from fl_app.tasks.cache import Arrays
from fl_app.tasks.options import check_images, check_options, check_own_data, image_shape
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.schema import read_schema
from fl_app.tasks.vision import torchvision

LAYOUT = "a folder for each class (DIR/class/image), or for each client (DIR/client/class/image)"


def image_folder(
    *,
    partition: Partitioner,
    num_clients: int | None,
    path: str | None = None,
    client: bool | None = True,
    test_share: float = 0.2,
    size: int | Sequence[int] = 32,
    channels: int = 3,
    scaling: str = "standardised",
    augment: str | None = None,
    model: str = "cnn",
    schema: str | Mapping[str, Any] | None = None,
    seed: int = 0,
) -> own.OwnTask:
    """Classify images that lie in a folder for each class.

    The folder holds ``class/image`` or ``client/class/image``. It may hold ``train`` and ``test``
    with these instead. Images are decoded and resized once and held as bytes.

    Args:
        partition: distributes the training images, unless `client` is used.
        num_clients: N >= 1; None = all owners, or 50 where nobody owns anything.
        path: the folder; None = no data, only a schema.
        client: whether each folder of ``client/class/image`` is a client; if not, `partition`
            distributes their images.
        test_share: share of the images that is the test set if there is no folder ``test``, in [0,
            1); 0 = no test set.
        size: height and width of the model's images in pixels, or both as ``[height, width]``.
        channels: 1 (grey) or 3 (colours).
        scaling: see `fl_app.tasks.scaling.make_scaling`.
        augment: random change of training batches, ``"crop_flip"`` or None.
        model: a model's name.
        schema: states shape, classes and moments, which are else those of the training images; a
            path, or the contents of a file (`fl_app.tasks.schema`).
        seed: seed of the partition.

    Raises:
        ValueError: a value is out of its bounds, a folder has no images or lies at the wrong depth,
            an image cannot be read, or a client gets none.
    """
    check_own_data(path=path, schema=schema, test_share=test_share)
    check_images(size=size, channels=channels)
    check_options(scaling=scaling, augment=augment)
    if path is None:
        return own.task_without_data("image_folder", schema, model)
    known = read_schema(schema)
    root = own.existing(path, "task.path", "folder")
    shape = known.input_shape if known else image_shape(size, channels)
    parted = all((root / name).is_dir() for name in ("train", "test"))

    def read() -> Arrays:
        train = _part(root / "train" if parted else root, shape, owned=bool(client))
        test = _part(root / "test", shape, owned=False) if parted else None
        return own.encode(train, test, kind="classification", test_share=test_share, schema=known)

    return own.own_task(
        "image_folder",
        root,
        [*root.rglob("*")],
        (shape, test_share, bool(client), known),
        read,
        partition=partition,
        num_clients=num_clients,
        seed=seed,
        model=model,
        scaling=scaling,
        augment=augment,
    )


def _part(root: Path, shape: Sequence[int], *, owned: bool) -> own.Part:
    """All images below a folder, decoded.

    Args:
        root: the folder.
        shape: of the model's images.
        owned: whether the images of ``client/class/image`` have owners.

    Raises:
        ValueError: its layout is another, or an image cannot be read.
    """
    import pandas as pd

    from fl_app.tasks.pictures import decode

    folders = _folders(root)
    deep = [folder for folder in folders if _folders(folder)]
    if not folders or len(deep) not in (0, len(folders)):
        flat = next((folder for folder in folders if folder not in deep), root)
        raise ValueError(f"task.path={root} must hold {LAYOUT}, and {flat} has no folders in it")
    found = []
    for owner in folders if deep else [root]:
        images = torchvision().datasets.ImageFolder(owner, allow_empty=True)
        named = ((file, images.classes[label], owner.name) for file, label in images.samples)
        found += [row for row in named if not row[1].startswith(".")]
    if not found:
        raise ValueError(f"task.path={root} holds no images (.png, .jpg, ...): there are no data")
    table = pd.DataFrame(found, columns=["file", "class", "owner"])
    inputs = decode([(file, Path(file)) for file in table["file"]], shape)
    owners = table["owner"] if deep and owned else None
    return own.Part(f"task.path={root}", inputs, table[["class"]], owners)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
