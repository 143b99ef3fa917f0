"""A task on folders of images, one for each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fl_app.tasks.files import existing
from fl_app.tasks.kind import augmentation
from fl_app.tasks.own_data import ImageKeys, Part
from fl_app.tasks.vision import torchvision

LAYOUT = "a folder for each class (DIR/class/image), or for each client (DIR/client/class/image)"


@dataclass(kw_only=True)
class ImageFolder(ImageKeys):
    """Classify images that lie in a folder for each class.

    The folder holds ``class/image`` or ``client/class/image``. It may hold ``train`` and ``test``
    with these instead. Images are decoded and resized once and held as bytes.

    Args:
        client: whether each folder of ``client/class/image`` is a client; False = partition=
            distributes their images.
        augment: crop_flip: training images are cropped and mirrored at random.
    """

    client: bool | None = True
    augment: str | None = augmentation()
    model: str | None = "cnn"

    name: ClassVar[str] = "image_folder"

    def files(self) -> Sequence[Path]:
        return [*self._root.rglob("*")]

    @property
    def _root(self) -> Path:
        return existing(self.path or "", "task.path", "folder")

    def read(self) -> tuple[Part, Part | None]:
        root = self._root
        if not all((root / name).is_dir() for name in ("train", "test")):
            return self._part(root, owned=bool(self.client)), None
        train = self._part(root / "train", owned=bool(self.client))
        return train, self._part(root / "test", owned=False)

    def _part(self, root: Path, *, owned: bool) -> Part:
        """All images below a folder, decoded.

        Args:
            root: the folder.
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
            raise ValueError(
                f"task.path={root} must hold {LAYOUT}, and {flat} has no folders in it"
            )
        found = []
        for owner in folders if deep else [root]:
            images = torchvision().datasets.ImageFolder(owner, allow_empty=True)
            named = ((file, images.classes[label], owner.name) for file, label in images.samples)
            found += [row for row in named if not row[1].startswith(".")]
        if not found:
            raise ValueError(
                f"task.path={root} holds no images (.png, .jpg, ...): there are no data"
            )
        table = pd.DataFrame(found, columns=["file", "class", "owner"])
        inputs = decode([(file, Path(file)) for file in table["file"]], self.shape)
        owners = table["owner"] if deep and owned else None
        return Part(f"task.path={root}", inputs, table[["class"]], owners)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
