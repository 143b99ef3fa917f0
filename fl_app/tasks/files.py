"""Files and data sets that users name, with errors that say what is expected."""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING

from fl_app.core.errors import explaining, require
from fl_app.core.extras import explaining_imports

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


def existing(path: str, key: str, what: str) -> Path:
    """A path that exists.

    Args:
        path: as the user gives it.
        key: of the configuration.
        what: ``"file"`` or ``"folder"``.

    Raises:
        ValueError: it does not exist, or is something else.
    """
    place = Path(path).expanduser()
    fits = place.is_dir() if what == "folder" else place.is_file()
    problem = "it is something else" if place.exists() else "it does not exist"
    require(fits, key, path, f"a {what}", f"{problem} (seen from {Path.cwd()})")
    return place


def folder_of(path: str, key: str) -> Path | None:
    """The folder of this name; None = it is the name of a data set on the hub.

    Raises:
        ValueError: it is neither.
    """
    if Path(path).expanduser().is_dir():
        return Path(path).expanduser()
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        existing(path, key, "folder")  # raises
    return None


@contextmanager
def loaded(path: str, subset: str | None, key: str) -> Iterator["DatasetDict"]:
    """The parts of a data set, from a folder or from the hub.

    Files that `datasets` unpacks from a folder are removed when the context ends.

    Args:
        path: a folder that ``save_to_disk`` has written or that holds files of data, or a name on
            the hub.
        subset: of a data set that has several.
        key: what messages call the path.

    Raises:
        ValueError: the folder cannot be read, or the hub cannot be reached or has no such set.
    """
    with explaining_imports():  # it takes seconds to import
        import datasets

    folder = folder_of(path, key)
    problem, remedy = "must be a folder that save_to_disk has written", ""
    problem += " or that holds files of data (parquet, csv, json, images)"
    if folder is None:
        problem = "is no folder here, and cannot be loaded from the Hugging Face hub"
        remedy = ". Where there is network, load_dataset(...).save_to_disk(DIR) of `datasets` puts "
        remedy += f"it into a folder, for {key}=DIR"
    with TemporaryDirectory(prefix="fl_app-") as scratch:
        with explaining(f"{key}={path} {problem}", remedy):
            if folder is None:
                data = datasets.load_dataset(path, subset)
            elif any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
                data = datasets.load_from_disk(folder)
            else:
                data = datasets.load_dataset(str(folder), subset, cache_dir=scratch)
        yield data if isinstance(data, dict) else datasets.DatasetDict(train=data)


def stored_images(
    data: "Dataset", column: str, where: str, rows: Iterable[int] | None = None
) -> list[tuple[str, Path | IO[bytes]]]:
    """The images of a column as they are stored, each with its name in messages.

    Args:
        data: has the column.
        column: its name.
        where: the data, for messages.
        rows: those of `data`, as messages count them, from 0; None = all, from the first.

    Raises:
        ValueError: a row has no image.
    """
    import datasets

    stored = data.cast_column(column, datasets.Image(decode=False))[column]
    images = list[tuple[str, Path | IO[bytes]]]()
    for row, each in zip(range(len(stored)) if rows is None else rows, stored, strict=True):
        name = f"{where}, row {row + 1}"
        if each is None:
            raise ValueError(f"{name} has no image: leave it out")
        images.append((name, io.BytesIO(each["bytes"]) if each["bytes"] else Path(each["path"])))
    return images
