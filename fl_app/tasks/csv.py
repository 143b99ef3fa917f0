"""A task on a table in a file of comma-separated values."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fl_app.core.hyper import Bound, bounded
from fl_app.tasks.files import existing, reading
from fl_app.tasks.own_data import Part, TableData

if TYPE_CHECKING:
    import pandas as pd

SIGN = Bound(r"one character, or \t for a tab", lambda v: len(v) == 1 or v == r"\t")

OTHERS = ";\t|,"


@dataclass(kw_only=True)
class Csv(TableData):
    """Predict one column of a table, or several, from other columns.

    The first line of a file names its columns. A file may be compressed (``.gz``, ``.zip``, ...).

    Args:
        test_path: file with the test set; None = a share of path.
        separator: between the values of a line, one character; a shell needs quotes around all of
            "task.separator=';'".
    """

    test_path: str | None = None
    separator: str = bounded(",", SIGN, "a line could not be cut into values")
    model: str | None = "mlp"

    name: ClassVar[str] = "csv"

    def files(self) -> Sequence[Path]:
        places = {"task.path": self.path, "task.test_path": self.test_path}
        return [existing(path, key, "file") for key, path in places.items() if path is not None]

    def read(self) -> tuple[Part, Part | None]:
        file, *tests = self.files()
        train = self.part_of(self._table(file, "task.path"), f"task.path={file}")
        if not tests:
            return train, None
        # Nobody owns a row of it, and it needs no other columns.
        names = None if self.known else [*train.inputs]
        tester = replace(self, client=None, inputs=names, ignore=(), categories=())
        where = f"task.test_path={tests[0]}"
        return train, tester.part_of(self._table(tests[0], "task.test_path"), where)

    def _table(self, file: Path, key: str) -> "pd.DataFrame":
        import pandas as pd

        sign = self.separator.replace("\\t", "\t")
        expected = f"a table in UTF-8, of values separated by {sign!r} (task.separator)"
        with reading(f"{key}={file}", expected), warnings.catch_warnings():
            # A line with more values than columns.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            head, *more = pd.read_csv(file, sep=sign, nrows=0).columns
            others = [other for other in OTHERS if other in head and not more]
            if others:
                raise ValueError(f'its first line is {head!r}: give "task.separator={others[0]!r}"')
            table = pd.read_csv(
                file,
                sep=sign,
                dtype=dict.fromkeys(self.texts(), "str"),
                skipinitialspace=True,
                index_col=False,
                low_memory=False,  # the types of columns must not depend on the size of a chunk
            )
        table.columns = table.columns.str.strip()
        twice = table.columns[table.columns.duplicated()]
        if len(twice):
            raise ValueError(f"{key}={file} has two columns {twice[0]!r}: rename one")
        return table
