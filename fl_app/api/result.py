"""The result of a run, read from its folder."""

from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import escape

from fl_app.core.events import to_json
from fl_app.core.extras import explaining_imports
from fl_app.core.layout import names_of
from fl_app.core.types import Array
from fl_app.record.folder import EVENTS, MODEL, TABLE, read_summary
from fl_app.record.log import read_events
from fl_app.report import Table, target_of
from fl_app.report.cells import Cell, is_cell, read_run
from fl_app.report.table import make_table

if TYPE_CHECKING:
    from fl_app.api.plot import Plot


class Reported:
    """Results of runs: the base of `Result` and `fl_app.Comparison`.

    Args:
        folder: of the runs.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self._folder = Path(folder).expanduser().absolute()

    @property
    def folder(self) -> Path:
        """Folder of all files, including a page for the browser, ``report.html``."""
        return self._folder

    def plot(self) -> "Plot":
        """The main score of each run over time, seeds as a band, as a figure of Altair."""
        with explaining_imports():
            from fl_app.api.plot import plot  # altair takes a second to import

        return plot(self._cells, target_of(self._cells))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>{self.plot().html()}"

    @cached_property
    def _cells(self) -> list[Cell]:
        return read_run(self._folder)

    @cached_property
    def _rows(self) -> Table:
        return make_table(self._cells, target_of(self._cells))


class Result(Reported):
    """The result of a run. Its parts are read from the run's files on first access.

    It also reads a run of the command line: ``Result("outputs/DATE/TIME")``.

    Args:
        folder: of the run.

    Raises:
        ValueError: the folder holds no run.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        super().__init__(folder)
        if not is_cell(self._folder):
            inside = names_of(sorted(map(str, filter(is_cell, self._folder.glob("*")))))
            reason = f"read one of {inside}" if inside else "nothing can be read"
            raise ValueError(f"folder={folder} must hold a run's {EVENTS}: {reason}")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The contents of ``summary.json``; empty if the run goes on, or was killed.

        Raises:
            ValueError: the file is damaged.
        """
        return read_summary(self._folder)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row per evaluation: ``version``, ``t`` in seconds, metrics, and totals so far.

        Raises:
            FileNotFoundError: the run goes on, or was killed; `events` has its evaluations.
        """
        return pd.read_csv(self._folder / TABLE)

    @cached_property
    def events(self) -> pd.DataFrame:
        """A row per event: ``kind``, ``t`` in seconds, and the fields of this kind."""
        rows = [to_json(event) for event in read_events(self._folder / EVENTS)]
        columns = dict.fromkeys(key for row in rows for key in row)
        return pd.DataFrame({key: _column([row.get(key) for row in rows]) for key in columns})

    @cached_property
    def model(self) -> dict[str, Array]:
        """The arrays of the final model by name, as in a ``state_dict`` of torch."""
        with np.load(self._folder / MODEL, allow_pickle=False) as arrays:
            return dict(arrays)

    def predict(self, inputs: "pd.DataFrame | Array | str | Path") -> Array:
        """Predict with the final model of a run on one's own table, arrays or images.

        Args:
            inputs: a table with the columns that the model was trained on, n rows; of task=csv also
                the path of a file, which is read as those of the run; or an array of shape
                ``(n, ...)`` with examples as in the run's data.

        Returns:
            Names of classes, shape ``(n,)``; or numbers in the targets' unit, shape ``(n, k)``.

        Raises:
            ValueError: the run has no schema, or an input does not fit it.
        """
        from fl_app.api.predict import predict  # loads torch

        return predict(self._folder, self.model, inputs)

    def __repr__(self) -> str:
        (cell,) = self._cells
        columns = self._rows.columns()
        numbers = [f"{column.group} {column.title} {column.texts[0]}".strip() for column in columns]
        return f"<{cell.algorithm} on {cell.task}: {', '.join(numbers)}; {self._folder}>"


def _column(values: list[Any]) -> "pd.Series[Any]":
    """A column of values; integers stay integers where some are missing."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        return pd.Series(values, dtype="Int64" if None in values else "int64")
    return pd.Series(values, dtype="float64" if kinds <= {int, float} and kinds else "object")
