"""A task on a data set of Hugging Face's `datasets`, from a folder or from the hub."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, ClassVar

from fl_app.core.errors import require
from fl_app.core.extras import told_if_missing
from fl_app.tasks.items import column_of, label_names
from fl_app.tasks.own_data import ImageKeys, Part, TableData, existing, names_of
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.sources import said

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from fl_app.tasks.task import Task


@dataclass(kw_only=True)
class Huggingface(ImageKeys, TableData):
    """Predict columns of a data set from a column of images, or from columns of numbers and texts.

    The path is a folder that ``save_to_disk`` has written or that holds files of data, or a name on
    the hub. A column of lists of numbers becomes as many columns as its lists are long. Names of
    classes are those of the data set. A target of lists of classes makes a label of each class.

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
            ValueError: a column is missing or cannot be an input, or an image cannot be read.
        """
        import datasets

        from fl_app.tasks.pictures import decode

        images = [name for name, kind in data.features.items() if isinstance(kind, datasets.Image)]
        inputs = images if self.inputs is None else names_of(self.inputs)
        image = next((name for name in images if name in inputs), None)
        if image is not None and len(inputs) > 1:
            raise ValueError(
                f"task.inputs={inputs} must be one column of images, or columns of numbers and "
                "texts: the model takes one kind"
            )
        there = f"a column of {where}, which has {', '.join(data.column_names)}"
        for key in (
            ("inputs", "target", "client") if inputs else ()
        ):  # else entries are columns, too
            for name in names_of(getattr(self, key)):
                known = name in data.column_names
                require(known, f"task.{key}", name, there, "it cannot be read")
        targets, ignored = names_of(self.target), names_of(self.ignore)
        used = {*targets, *inputs, self.client, *(self.known.targets if self.known else ())}
        if not inputs:  # all columns may be some
            used |= {*data.column_names} - {*ignored}
        names = [name for name in data.column_names if name in used and name not in images]
        table, made = _table(data, names, where, needed=self.known is None)
        if image is not None:
            table[image] = True  # so that it is there; images have no missing values
        reader = replace(
            self,
            target=[new for old in targets for new in made.get(old, [old])],
            inputs=[new for old in inputs for new in made.get(old, [old])] or None,
            ignore=[name for name in ignored if name not in data.column_names],
        )
        part = reader.part_of(table, where)
        if image is None:
            return part
        kept = data.select(part.targets.index)
        return replace(part, inputs=decode(stored_images(kept, image, where), self.shape))


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


def _table(
    data: "Dataset", names: Sequence[str], where: str, *, needed: bool
) -> tuple[Any, dict[str, list[str]]]:
    """Columns as a table, and what takes the place of a column of lists: one for each entry.

    Args:
        data: one part of a data set.
        names: of the columns.
        where: the data, for messages.
        needed: whether a column that has no place in a table is an error; else it is left out.

    Raises:
        ValueError: a column is needed and has no place in a table.
    """
    import pandas as pd

    table: dict[str, Any] = {}
    made: dict[str, list[str]] = {}
    for name in names:
        try:
            values = column_of(data, name)
            first = values.flat[0] if values.size else None
            if values.ndim > 2 or values.dtype.kind in "mM" or isinstance(first, dict | bytes):
                raise ValueError(f"the column {name!r} has the type {data.features[name]}")
        except ValueError as error:
            if not needed:
                continue
            raise ValueError(
                f"{where}: {error}; a table has numbers, texts, classes, lists of classes, and "
                f"lists of numbers of one length: leave it out with task.ignore=[{name}]"
            ) from error
        if values.ndim == 1:
            table[name] = values
            continue
        labels = label_names(data, name)
        places = [f"[{place}]" for place in range(values.shape[1])]
        made[name] = [
            f"{name}{end}" for end in (places if labels is None else map(".{}".format, labels))
        ]
        table |= dict(zip(made[name], values.T, strict=True))
    return pd.DataFrame(table), made
