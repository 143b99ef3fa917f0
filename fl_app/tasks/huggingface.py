"""A task on a data set of Hugging Face's `datasets`, from a folder or from the hub."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, ClassVar

from fl_app.core.errors import require
from fl_app.core.extras import told_if_missing
from fl_app.tasks.items import column_of, pair
from fl_app.tasks.own_data import ImageKeys, Part, TableData, existing
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.sources import said

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from fl_app.tasks.task import Task


@dataclass(kw_only=True)
class Huggingface(ImageKeys, TableData):
    """Predict a column of a data set, or several, from other columns.

    The path is a folder that ``save_to_disk`` has written or that holds files of data, or a name on
    the hub. Inputs are a column of images or of arrays, or columns of numbers and texts. Names of
    classes are those of the data set.

    Args:
        subset: of a data set on the hub that has several.
        split: part of the data set for training.
        test_split: part that is the test set; None = test if there is one, else a share of split.
    """

    subset: str | None = None
    split: str = "train"
    test_split: str | None = None

    name: ClassVar[str] = "huggingface"

    def files(self) -> Sequence[Path]:
        folder = folder_of(self.path or "", "task.path")
        return [*folder.rglob("*")] if folder else []

    def __call__(self, *, partition: Partitioner, num_clients: int | None, seed: int = 0) -> "Task":
        task = super().__call__(partition=partition, num_clients=num_clients, seed=seed)
        on_hub = self.path is not None and folder_of(self.path, "task.path") is None
        return replace(task, source="hub") if on_hub else task

    def read(self) -> tuple[Part, Part | None]:
        path = self.path or ""
        with loaded(path, self.subset, "task.path") as parts:
            for key, name in (("task.split", self.split), ("task.test_split", self.test_split)):
                bound = f"a part of {path}, one of {', '.join(parts)}"
                require(name in (None, *parts), key, name, bound, "there is no other")
            train = self._part(parts[self.split], f"task.path={path}, {self.split}")
            tests = self.test_split or (
                "test" if "test" in parts and self.split != "test" else None
            )
            if tests is None:
                return train, None
            tester = replace(self, client=None)
            return train, tester._part(parts[tests], f"task.path={path}, {tests}")

    def _part(self, data: "Dataset", where: str) -> Part:
        """The examples of one part of a data set.

        Raises:
            ValueError: a column is missing or cannot be an input.
        """
        import datasets
        import pandas as pd

        from fl_app.tasks.pictures import decode

        kinds, flat = data.features, (datasets.ClassLabel, datasets.Value)
        images = [name for name, kind in kinds.items() if isinstance(kind, datasets.Image)]
        # Images and arrays are read when it is known that they are the inputs.
        columns = {n: column_of(data, n) if isinstance(k, flat) else True for n, k in kinds.items()}
        table = pd.DataFrame(columns, index=range(len(data)))
        part = replace(self, inputs=self.inputs or images or None).part_of(table, where)
        names = [*part.inputs]
        deep = next((name for name in names if not isinstance(kinds[name], flat)), None)
        if deep is None:
            return part
        if len(names) > 1:
            raise ValueError(
                f"task.inputs={names} must be one column of images or of arrays, as {deep!r} is, "
                f"or columns of numbers and texts; leave others out (task.ignore=[{deep}])"
            )
        kept = data.select(part.targets.index)
        if deep in images:
            return replace(part, inputs=decode(stored_images(kept, deep, where), self.shape))
        arrays, _ = pair(column_of(kept, deep), part.targets, f"{where}: {deep}", "its targets")
        return replace(part, inputs=arrays)


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
            words = f"{path!r}" if subset is None else f"{path!r}, {subset!r}"
            raise ValueError(
                f"{key}={path} is no folder here, and cannot be loaded from the Hugging Face hub "
                f"({said(error)}). With network, this puts it into a folder DIR, for {key}=DIR:\n"
                f'  python -c "from datasets import load_dataset as load; load({words})'
                ".save_to_disk('DIR')\""
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
