"""What a search leaves: all trials as a table, and the best setting of every cell as overrides."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from fl_app.core.files import atomic_write
from fl_app.report import no_pictures
from fl_app.search.settings import BEST, Settings
from fl_app.search.space import Space, at_edge, override
from fl_app.search.study import CellStudy

TRIALS, PAGE = "trials.csv", "search.html"
UNEQUAL = 2.0  # ratio of stretches from which a mean over one says more of the end than the other's


@dataclass(frozen=True)
class Found:
    """What the search has come to in one cell.

    Attributes:
        name: of the cell.
        algorithm: of the cell.
        space: what was tried.
        study: with all trials.
        folder: of the runs.
        budget: which limit ended a run, and its value.
    """

    name: str
    algorithm: str
    space: Space
    study: CellStudy
    folder: Path
    budget: tuple[str, float]

    @property
    def best(self) -> list[str]:
        """The best setting as overrides; empty if no trial was completed."""
        best = self.study.best
        return [] if best is None else [override(key, best.params[key]) for key in self.space]

    @property
    def edges(self) -> list[str]:
        """Keys whose best value is an end of its range, beyond which a better one may lie."""
        best = self.study.best
        if best is None:
            return []
        return [key for key, each in self.space.items() if at_edge(each, best.params[key])]


def score_of(summary: Mapping[str, Any], measure: str) -> float | None:
    """The score of a run, the higher the better; None if it has none.

    Args:
        summary: ``summary.json``.
        measure: beginning of the key, such as "last10".
    """
    value = summary.get(f"{measure}_{summary.get('score')}")
    if value is None:
        return None
    return float(value if summary["higher_is_better"] else -value)


def unequal(found: Sequence[Found], settings: Settings) -> str:
    """A note if ``last10`` is of unequal stretches of the cells' runs; else "".

    Evaluations are counted in versions, and a version may take one client update or ten.
    """
    if settings.measure != "last10":
        return ""
    stretches = {each.name: _covered(each) for each in found}
    covered = {name: stretch for name, stretch in stretches.items() if stretch is not None}
    if not covered or max(covered.values()) < UNEQUAL * min(covered.values()):
        return ""
    unit = "client updates" if found[0].budget[0] == "max_updates" else "seconds"
    least, most = min(covered, key=covered.__getitem__), max(covered, key=covered.__getitem__)
    return (
        f"note: last10 is the mean over the last {covered[least]:,.10g} {unit} of {least}, and "
        f"over the last {covered[most]:,.10g} of {most}: give each cell an eval_every with as many "
        f"{unit} between evaluations, or search.measure=final"
    )


def _covered(found: Found) -> float | None:
    """Client updates, or seconds, that the last ten evaluations of the best trial cover.

    None if there is no such trial, or its files were removed.
    """
    best, column = found.study.best, "client_updates" if found.budget[0] == "max_updates" else "t"
    files = (
        [] if best is None else sorted((found.folder / str(best.number)).glob("seed*/metrics.csv"))
    )
    if not files:
        return None
    with files[0].open(newline="") as file:
        at = [float(row[column]) for row in csv.DictReader(file)][-10:]
    return at[-1] - at[0]


def write(found: Sequence[Found], settings: Settings, folder: Path) -> None:
    """Write the table of trials, the best settings, and the page."""
    with atomic_write(folder / TRIALS) as file:
        file.write(_table(found).encode())
    cells = {each.name: each.best or None for each in found}
    best = {"seeds": settings.seeds, "cells": cells}
    with atomic_write(folder / BEST) as file:
        file.write(OmegaConf.to_yaml(OmegaConf.create(best)).encode())
    if not no_pictures():
        from fl_app.search.page import write_page  # plotly takes a tenth of a second to import

        write_page(found, settings, folder / PAGE)


def _table(found: Sequence[Found]) -> str:
    keys = list(dict.fromkeys(key for each in found for key in each.space))
    seeds = list(
        dict.fromkeys(
            seed
            for each in found
            for trial in each.study.trials
            for seed in trial.user_attrs.get("scores", {})
        )
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    scores = [f"score_seed{seed}" for seed in seeds]
    writer.writerow(["cell", "trial", "state", "score", *scores, "client_updates", *keys, "error"])
    for each in found:
        for trial in each.study.trials:
            attributes = trial.user_attrs
            of_seeds = attributes.get("scores", {})
            writer.writerow(
                [
                    each.name,
                    trial.number,
                    trial.state.name.lower(),
                    "" if trial.value is None else trial.value,
                    *(of_seeds.get(seed, "") for seed in seeds),
                    attributes.get("spent", ""),
                    *(trial.params.get(key, "") for key in keys),
                    attributes.get("error", ""),
                ]
            )
    return text.getvalue()


def tell(found: Sequence[Found], folder: Path) -> None:
    """Print the best setting of every cell."""
    console = Console()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("cell", "best score", "setting"):
        table.add_column(title, overflow="fold")
    for each in found:
        best = each.study.best
        score = "-" if best is None else f"{best.value:.4g}"
        edge = f"  (at an end of its range: {', '.join(each.edges)})" if each.edges else ""
        table.add_row(each.name, score, " ".join(each.best) + edge)
    console.print(table)
    told = no_pictures()
    if told:
        console.print(told, soft_wrap=True, highlight=False)
    files = "Trials and best settings" if told else "Trials, best settings and page"
    console.print(f"{files}: {folder}", soft_wrap=True, highlight=False)
