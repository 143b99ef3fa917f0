"""A task on a data set of Hugging Face's `datasets`, from a folder or from the hub."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fl_app.core.errors import require
from fl_app.tasks.files import folder_of, loaded, stored_images
from fl_app.tasks.items import column_of, pair
from fl_app.tasks.own_data import ImageKeys, Part, TableData

if TYPE_CHECKING:
    from datasets import Dataset


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
