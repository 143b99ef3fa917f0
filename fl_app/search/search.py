"""Carries out a search: trials of every cell, then their best settings on fresh seeds."""

import glob
import json
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from fl_app.cli import CONF, compose, nearest, refuse_epochs
from fl_app.core.errors import Diverged, Interrupted, RunError, Stalled, require
from fl_app.core.files import disk_errors_as_run_errors, open_log, require_writable, write_text
from fl_app.record.progress import LINE_EVERY
from fl_app.report.cells import ENDS
from fl_app.runner.cell import Plan
from fl_app.runner.run import processes, run_cells
from fl_app.runner.validate import checked_cells
from fl_app.search.settings import BEST, Settings
from fl_app.search.space import Space, grid, override, parse
from fl_app.search.study import CellStudy, open_journal

JOURNAL, SETTINGS, LOCK, TRIALS = "study.jsonl", "search.json", "search.lock", "trials.csv"
MAY_CHANGE = ("parallel", "folder", "trials", "test_seeds")  # when a search resumes
ATTRS = ("number", "state", "value", "params", "user_attrs")  # columns of trials.csv
MAX_TOLD = 8  # cells whose best scores are told after each trial
HEAVY = ("events.jsonl", "model.npz", "checkpoints")  # files removed after a trial
# The search sets these keys, or trials would have other lengths.
SEARCH_KEYS = (
    *("seed", "max_updates", "max_seconds", "num_versions", "target_accuracy", "experiment"),
    *("resume", "checkpoint_every"),
)
REFUSED = ("seed", "experiment.seeds", "experiment.parallel")
UNEQUAL = "cells would be compared that learn for different times"


def search(settings: Settings, words: Sequence[str], folder: Path, resume: bool) -> None:
    """Search, write ``trials.csv`` and ``best.yaml``, and test the best settings.

    Args:
        settings: of the search.
        words: overrides that describe the experiment.
        folder: for all files.
        resume: whether to resume the search that the folder holds, if any.

    Raises:
        ValueError: a key is refused before anything runs; or, after other runs, a trial's values
            are refused or `num_versions` ended a run early.
        RunError: a run failed for another reason than its setting, such as a killed process; the
            search can resume with ``resume=auto``.
        Interrupted: Ctrl-C; the search can resume with ``resume=auto``.
    """
    compose(words)  # explains a mistyped key
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        all_words = [*words, "experiment.seeds=null", f"experiment.parallel={settings.parallel}"]
        all_words += [] if settings.updates is None else [f"max_updates={settings.updates}"]
        config = hydra.compose("config", overrides=all_words)
        cells = cells_of(config, words, all_words)
        budget = budget_of(settings, cells)
        spaces = {name: space_of(settings, name, cell) for name, cell in cells.items()}
        with disk_errors_as_run_errors(folder), require_writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with open_log(folder / LOCK, None):
                keys = {key: v for key, v in asdict(settings).items() if key not in MAY_CHANGE}
                code = {name: dict(cell.get("code") or {}) for name, cell in cells.items()}
                _enter({"search": keys, "words": list(words), "code": code}, folder, resume)
                journal = open_journal(folder / JOURNAL)
                studies = []
                for name, space in spaces.items():
                    configured = {key: OmegaConf.select(cells[name], key) for key in space}
                    first = grid(space, settings.grid, configured) if settings.grid else []
                    key, *others = space
                    if settings.trials < len(first):
                        note = f"{name}: search.trials={settings.trials} ends within the grid of"
                        print(note, f"{len(first)} values: the upper end of {key} is not tried")
                    if others and settings.trials <= len(first):
                        note = f"{name}: all trials are of the grid over {key}, and none tries"
                        print(note, ", ".join(others), "(give more search.trials)")
                    study = CellStudy(journal, name, space, first, settings.trials, settings.seed)
                    studies.append(study)
                with processes(settings.parallel) as pool:
                    trials = _Search(studies, settings, config, all_words, folder, pool, *budget)
                    try:
                        for number in range(settings.trials):
                            trials.try_each(number)
                    finally:
                        trials.write()
                    trials.judge()


def cells_of(
    config: DictConfig, words: Sequence[str], all_words: Sequence[str]
) -> dict[str, DictConfig]:
    """The cells of the experiment, before a trial's values.

    Args:
        config: composed from all words.
        words: the user's.
        all_words: these, and the search's.

    Raises:
        ValueError: there is no experiment, or a word is refused.
    """
    for word in words:
        key = word.lstrip("+").partition("=")[0]
        bound = "left out: there are search.seeds and search.parallel"
        require(key not in REFUSED, key, "...", bound, "the search has values of its own")
    bound = "the name of an experiment, such as experiment=quickstart"
    has_cells = bool(config.experiment.cells)
    require(has_cells, "experiment", "null", bound, "there are no cells to search")
    for name in config.experiment.spaces:
        is_cell = name.partition("@")[0] in config.experiment.cells
        require(is_cell, f"experiment.spaces.{name}", "...", "of a cell", "it would have no effect")
    return checked_cells(config, all_words)


def budget_of(settings: Settings, cells: Mapping[str, DictConfig]) -> tuple[str, float]:
    """Which limit ends the runs of all cells, and its value.

    Raises:
        ValueError: the cells have different ones.
    """
    keys = ["max_updates" if cell.max_updates else "max_seconds" for cell in cells.values()]
    budgets = {(key, cell[key]) for key, cell in zip(keys, cells.values(), strict=True)}
    key, limit = next(iter(budgets))
    is_one = len(budgets) == 1 and limit is not None
    bound = "given, unless all cells have the same max_updates, or the same max_seconds"
    require(is_one, "search.updates", settings.updates, bound, UNEQUAL)
    ends = all(cell.target_accuracy is None for cell in cells.values())
    require(ends, "target_accuracy", "...", "null", "the best trials would end before the others")
    trains = all(cell.runtime.get("train", True) for cell in cells.values())
    require(trains, "runtime.train", "false", "true", "no trial would have a score")
    return key, limit


def space_of(settings: Settings, name: str, cell: DictConfig) -> Space:
    """The space of a cell.

    Raises:
        ValueError: it is empty, or has a key that the cell lacks or the search sets.
    """
    words = shlex.split(settings.space)
    if not words:
        words = list(cell.experiment.space)
        for entry in dict.fromkeys((name.partition("@")[0], name)):
            words += cell.experiment.spaces.get(entry) or []
    space = parse(words)
    require(bool(space), "search.space", "''", f"given for cell {name}", "there is nothing to try")
    refuse_epochs(cell, [*space])
    keys = pd.json_normalize(OmegaConf.to_container(cell)).columns
    for key in space:
        if key not in keys:
            problem = f"search.space: unknown key {key!r} of cell {name}"
            raise ValueError(problem + nearest(key, keys))
        free = key.partition(".")[0] not in SEARCH_KEYS
        bound = f"none of {', '.join(SEARCH_KEYS)}"
        require(free, "search.space", key, bound, "the search sets it, or compares by it")
    return space


def _enter(request: Mapping[str, Any], folder: Path, resume: bool) -> None:
    """Write keys, words and the user's code of the search; refuse to resume another search."""
    path = folder / SETTINGS
    if path.exists():
        bound = "a new folder, or one to go on with by resume=auto"
        require(resume, "search.folder", folder, bound, "it holds a search")
        matches = json.loads(path.read_text()) == request
        bound = f"the folder of a search with the same words, keys and code, which are in {path}"
        require(matches, "search.folder", folder, bound, "trials could not be compared")
    write_text(path, json.dumps(request, indent=2))


@dataclass
class _Search:
    """The state of a search.

    Attributes:
        studies: of the cells.
        settings: the keys ``search.*``.
        config: composed from `words`.
        words: overrides of all runs.
        folder: for all files.
        pool: of processes for runs side by side.
        key: of the limit that ends every run.
        limit: its value.
    """

    studies: Sequence[CellStudy]
    settings: Settings
    config: DictConfig
    words: Sequence[str]
    folder: Path
    pool: ProcessPoolExecutor
    key: str
    limit: float

    def try_each(self, number: int) -> None:
        """Carry out one trial of every cell."""
        studies = [study for study in self.studies if study.begin(number)]
        runs, seeds = self.folder / "runs" / str(number), self.settings.seeds
        trials, tests = self.settings.trials, len(self.settings.test_seeds)
        later = len(self.studies) * ((trials - number - 1) * len(seeds) + tests)
        values, title = {s: s.words for s in studies}, f"trial {number + 1} of {trials}"
        summaries = self._run(values, seeds, runs, title, later)
        for study in studies:
            results = {seed: summaries[f"{study.name}-seed{seed}"] for seed in seeds}
            scores = {seed: score_of(each, self.settings.measure) for seed, each in results.items()}
            valid = {seed: score for seed, score in scores.items() if score is not None}
            if len(valid) == len(results):
                study.complete(valid)
            else:
                seed = next(iter({*results} - {*valid}))
                study.fail(f"seed {seed}: {results[seed]['stopped']}")
        for path in (path for name in HEAVY for path in runs.glob(f"*/{name}")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        best = [f"{study.name} {study.best.value:.4g}" for study in self.studies if study.best]
        if len(self.studies) <= MAX_TOLD:
            print(f"{title}; best so far: {', '.join(best) or '-'}", flush=True)

    def _run(
        self,
        settings: Mapping[CellStudy, Sequence[str]],
        seeds: Sequence[int],
        folder: Path,
        title: str,
        later: int = 0,
    ) -> dict[str, dict[str, Any]]:
        """The summaries of runs, by names of folders: full length, or an error of the setting.

        Args:
            settings: overrides of cells; each runs with every seed.
            seeds: of the runs; without one, nothing runs.
            folder: for the files.
            title: of these runs on the console.
            later: number of runs after these.

        Raises:
            ValueError: a configuration is refused, or `num_versions` ended a run early.
            RunError: a run failed for another reason than its setting.
            Interrupted: Ctrl-C.
        """
        if not (settings and seeds):
            return {}
        runs = dict[str, Plan]()
        for study, values in settings.items():
            words = [*self.words, f"experiment.only=['{study.name}']", "resume=auto"]
            words += [f"experiment.seeds={[*seeds]}", *values]
            self.config.experiment.update({"only": [study.name], "seeds": [*seeds]})
            try:
                cells = checked_cells(self.config, words).values()
            except ValueError as error:
                raise ValueError(f"{study.name}: {error}") from None
            runs |= {f"{study.name}-seed{cell.seed}": Plan(cell, words) for cell in cells}
        start = last = time.monotonic()

        def tell(ended: int) -> None:
            """Tell, now and then, how many runs have ended."""
            nonlocal last
            if (now := time.monotonic()) >= last + LINE_EVERY:
                last, minutes = now, (now - start) / 60 / ended * (len(runs) - ended + later)
                print(f"{title}: {ended} of {len(runs)} runs, {minutes:.0f} min left", flush=True)

        parallel, pool = self.settings.parallel, self.pool
        out = run_cells(
            runs, folder, parallel=parallel, pool=pool, show=False, progress=tell, figures=False
        )
        if out.interrupted:
            raise Interrupted(f"interrupted; what was tried so far lies in {self.folder}")
        for name, problem in out.problems.items():
            if not isinstance(problem, Diverged | Stalled):
                raise RunError(f"{name}: {type(problem).__name__}: {problem}")
        unit = "client_updates" if self.key == "max_updates" else "virtual_seconds"
        for name, summary in out.summaries.items():
            complete = summary[unit] >= self.limit or summary["stopped"] != "num_versions"
            bound = f"larger, for {name}: it ended the run before {self.key}={self.limit}"
            require(complete, "num_versions", summary["num_versions"], bound, UNEQUAL)
        return out.summaries

    def write(self) -> None:
        """Write all trials, and the best setting of every cell as overrides."""
        tables = [
            study.study.trials_dataframe(ATTRS).assign(cell=study.name) for study in self.studies
        ]
        table = pd.concat([t for t in tables if len(t)] or tables)
        write_text(self.folder / TRIALS, table.set_index(["cell", "number"]).to_csv())
        cells = {study.name: study.setting or None for study in self.studies}
        best = OmegaConf.create({"seeds": self.settings.seeds, "cells": cells})
        write_text(self.folder / BEST, OmegaConf.to_yaml(best))

    def judge(self) -> None:
        """Print the best settings, and run them on fresh seeds with the usual report."""
        for study in self.studies:
            print(f"{study.name}: {' '.join(study.setting) or 'no trial was completed'}")
        print(f"Trials and best settings: {self.folder}")
        folder, seeds = self.folder / "test", self.settings.test_seeds
        best = {study: study.setting for study in self.studies if study.setting}
        for study in best:
            _remove_others(folder, study, seeds)
        if self._run(best, seeds, folder, "best settings"):
            print(f"The best settings on fresh seeds: {folder}")


def _remove_others(folder: Path, study: CellStudy, seeds: Iterable[int]) -> None:
    """Remove judged runs of other seeds or of settings that were the best before."""
    for path in folder.glob(f"{glob.escape(study.name)}-seed*/config.yaml"):
        config = OmegaConf.load(path)
        setting = [override(key, OmegaConf.select(config, key)) for key in study.space]
        if setting != study.setting or config.seed not in seeds:
            print(f"{path.parent} is removed: another setting or other seeds are judged now")
            shutil.rmtree(path.parent)


def score_of(summary: Mapping[str, Any], measure: str) -> float | None:
    """The score of a run, the higher the better; None if it failed.

    Args:
        summary: ``summary.json``.
        measure: beginning of the key, such as "last10".
    """
    value = summary.get(f"{measure}_{summary.get('score')}")
    if value is None or summary["stopped"] not in ENDS:
        return None
    return float(value if summary["higher_is_better"] else -value)
