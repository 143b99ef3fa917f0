"""Files and data sets that users name, read with errors that say what they must be."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING

from fl_app.core.errors import require
from fl_app.core.extras import told_if_missing

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
    found = Path(path).expanduser()
    fits = found.is_dir() if what == "folder" else found.is_file()
    problem = "it is something else" if found.exists() else "it does not exist"
    require(fits, key, path, f"a {what}", f"{problem} (seen from {Path.cwd()})")
    return found


@contextmanager
def reading(path: Path | str, expected: str) -> Iterator[None]:
    """Turn any error while a file is read into one that names the file and its expected content.

    Args:
        path: the file, or what messages call it.
        expected: its expected content, such as ``"an image that can be read"``.

    Raises:
        ValueError: anything went wrong.
    """
    try:
        yield
    except Exception as error:  # libraries raise errors of any type
        remedy = ": iconv -f LATIN1 -t UTF-8 FILE > NEW" * isinstance(error, UnicodeDecodeError)
        raise ValueError(f"{path} must be {expected}, but {said(error)}{remedy}") from error


def said(error: BaseException) -> str:
    """An error's message in one line, with its type unless it is a `ValueError`."""
    text = " ".join(str(error).split())
    return text if type(error) is ValueError and text else f"{type(error).__name__}: {text}"


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

    What `datasets` unpacks of a folder is removed at the end of the context.

    Args:
        path: a folder that ``save_to_disk`` has written or that holds files of data, or a name on
            the hub.
        subset: of a data set that has several.
        key: what messages call the path.

    Raises:
        ValueError: the folder cannot be read, or the hub cannot be reached or has no such set.
    """
    with told_if_missing():  # it takes seconds to import
        import datasets

    folder = folder_of(path, key)
    with TemporaryDirectory(prefix="fl_app-") as made:
        try:
            if folder is None:
                data = datasets.load_dataset(path, subset)
            elif any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
                data = datasets.load_from_disk(folder)
            else:
                data = datasets.load_dataset(str(folder), subset, cache_dir=made)
        except Exception as error:  # libraries raise errors of any type
            if folder is not None:
                raise ValueError(
                    f"{key}={path} must be a folder that save_to_disk has written or that holds "
                    f"files of data (parquet, csv, json, images), but {said(error)}"
                ) from error
            raise ValueError(
                f"{key}={path} is no folder here, and cannot be loaded from the Hugging Face hub "
                f"({said(error)}). Where there is network, load_dataset(...).save_to_disk(DIR) of "
                f"`datasets` puts it into a folder, for {key}=DIR"
            ) from error
        yield data if isinstance(data, dict) else datasets.DatasetDict(train=data)


def stored_images(data: "Dataset", column: str, where: str) -> list[tuple[str, Path | IO[bytes]]]:
    """The images of a column as they are stored, each with what messages call it."""
    import datasets

    stored = data.cast_column(column, datasets.Image(decode=False))[column]
    return [
        (
            f"{where}, row {row}",
            io.BytesIO(image["bytes"]) if image["bytes"] else Path(image["path"]),
        )
        for row, image in enumerate(stored, 1)
    ]
