"""Carries out a search: trials of every cell, then their best settings on fresh seeds."""

import hashlib
import json
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
from omegaconf import DictConfig, OmegaConf
from optuna.trial import Trial

from fl_app.cli import CONF, compose, nearest
from fl_app.core.errors import Diverged, Interrupted, Stalled, require
from fl_app.core.files import (
    atomic_write,
    disk_errors_as_run_errors,
    open_log,
    require_writable,
)
from fl_app.record.progress import Board
from fl_app.report import print_table
from fl_app.runner import earlier
from fl_app.runner.jobs import Ended, Job, Plan, carry_out
from fl_app.runner.run import run_cells
from fl_app.runner.validate import checked_cells
from fl_app.search import results, space
from fl_app.search.settings import Settings
from fl_app.search.study import CellStudy, open_journal

JOURNAL, SETTINGS, LOCK = "study.jsonl", "search.json", "search.lock"
# What may differ when a search goes on.
MAY_CHANGE = ("parallel", "folder", "trials", "test_seeds")
# Keys that no space may have: the search sets them, or trials would have other lengths.
OWN = (
    *("seed", "max_updates", "max_seconds", "num_versions", "target_accuracy", "experiment"),
    *("resume", "overwrite", "checkpoint_final", "checkpoint_every"),
)
AGAIN = "the same command with resume=auto goes on"
_UNKNOWN = object()
HEAVY = ("events.jsonl", "model.npz", "checkpoints")  # files of a run that nobody reads after it


def search(settings: Settings, words: Sequence[str], folder: Path, resume: bool) -> None:
    """Search, and write ``trials.csv``, ``best.yaml`` and ``search.html`` into a folder.

    Args:
        settings: of the search.
        words: overrides that describe the experiment.
        folder: for all files.
        resume: whether to go on with the search that the folder holds, if it holds one.

    Raises:
        ValueError: a key is refused; nothing was run by this call, unless a trial's own values are.
        RunError: a run on fresh seeds failed, or a trial did for another reason than its setting,
            such as a killed process; the same search goes on with ``resume=auto``.
        Interrupted: Ctrl-C; the same search goes on with ``resume=auto``.
    """
    config = compose(words)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cells = cells_to_search(settings, config, words, folder)
        with ExitStack() as stack:
            stack.enter_context(disk_errors_as_run_errors(folder, AGAIN))
            with require_writable(folder):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(open_log(folder / LOCK, None))
                _enter(settings, words, cells, folder, resume)
            storage = open_journal(folder / JOURNAL)
            for cell in cells:
                cell.open(storage)
            most = max(cell.ended for cell in cells)
            require(
                most <= settings.trials,
                "search.trials",
                settings.trials,
                f"at least {most}, which a cell has had",
                "cells would be compared after different numbers of trials",
            )
            interrupted = _try_all(cells, settings)
            found = [cell.found() for cell in cells]
            results.write(found, settings, folder)
            if interrupted:
                raise Interrupted(f"interrupted; what was tried so far lies in {folder}")
            results.tell(found, folder)
            if settings.test_seeds:
                _run_best(found, settings, words, folder)


def _digest(cell: "SearchedCell") -> str:
    """Of what is tried in a cell and of its configuration, which may come from a file of conf/."""
    told = repr((cell.space, cell.budget, earlier.settings(cell.config)))
    return hashlib.sha256(told.encode()).hexdigest()


def _enter(
    settings: Settings,
    words: Sequence[str],
    cells: Sequence["SearchedCell"],
    folder: Path,
    resume: bool,
) -> None:
    """Make the folder; of a search that it holds, compare the settings."""
    own = {key: value for key, value in asdict(settings).items() if key not in MAY_CHANGE}
    digests = {cell.name: _digest(cell) for cell in cells}
    now = {"search": own, "words": list(words)}
    path = folder / SETTINGS
    if path.exists():
        require(
            resume,
            "search.folder",
            folder,
            "a new folder, or one to go on with by resume=auto",
            "it holds a search",
        )
        before = json.loads(path.read_text())
        were = before.pop("cells", digests)
        if before != now:
            keys = [f"search.{k}" for k in own if before["search"].get(k) != own[k]]
            raise ValueError(
                f"resume=auto: {folder} holds a search with other words "
                f"({', '.join(keys) or ' '.join(before['words'])}): give another folder"
            )
        changed = [name for name, digest in digests.items() if were.get(name) != digest]
        if changed or were.keys() != digests.keys():
            raise ValueError(
                f"resume=auto: space, budget or configuration of {', '.join(changed) or 'cells'} "
                f"has changed since {folder} was begun, so its trials cannot be compared: give "
                "another folder"
            )
        return
    with atomic_write(path) as file:
        file.write(json.dumps({**now, "cells": digests}, indent=2).encode())


def _try_all(cells: Sequence["SearchedCell"], settings: Settings) -> bool:
    """Carry out all trials; return whether Ctrl-C ended them."""
    jobs: deque[Job] = deque()
    by_name = {}
    for cell in cells:
        for job in cell.todo():
            by_name[job.name] = cell
            jobs.append(job)
    board, interrupted = Board(), False
    try:
        for job, ended in carry_out(jobs, settings.parallel, show=False):
            if ended.interrupted:
                interrupted = True
                continue  # the others save a checkpoint
            cell = by_name.pop(job.name)
            for follower in cell.take(job, ended):
                by_name[follower.name] = cell
                jobs.append(follower)
            board.show("search", _share(cells), _status(cells))
    finally:
        board.close()
    return interrupted


def _share(cells: Sequence["SearchedCell"]) -> float:
    return sum(cell.ended for cell in cells) / sum(cell.settings.trials for cell in cells)


def _status(cells: Sequence["SearchedCell"]) -> str:
    ended, total = sum(c.ended for c in cells), sum(c.settings.trials for c in cells)
    return f"{ended}/{total} trials of {len(cells)} cells"


def _run_best(
    found: Sequence[results.Found], settings: Settings, words: Sequence[str], folder: Path
) -> None:
    """Run the best setting of every cell on fresh seeds, and write the usual report."""
    best = {each.name: each.best for each in found if each.best}
    for each in found:
        if each.name not in best:
            print(f"{each.name} is not judged: none of its trials was completed")
    if not best:
        return
    _remove_outdated(folder / "test", found)
    own = [*words, *_budget(settings)]
    plans = {
        f"{name}-seed{seed}": _best_plan(name, values, seed, own)
        for name, values in best.items()
        for seed in settings.test_seeds
    }
    target = next(iter(plans.values())).config.experiment.report_accuracy
    ran = run_cells(plans, folder / "test", target, parallel=settings.parallel)
    print_table(ran.table)
    print(f"The best settings on fresh seeds: {folder / 'test'}")
    if ran.interrupted:
        raise Interrupted(f"interrupted; what was done so far lies in {folder}")
    if ran.problems:
        raise list(ran.problems.values())[-1]
    budgets = {each.name: each.budget for each in found}
    for name, summary in ran.summaries.items():
        _require_full_length(name, summary, budgets[name.rpartition("-seed")[0]])


def _require_full_length(
    name: str, summary: Mapping[str, Any], budget: tuple[str, float | None]
) -> None:
    """Refuse a run that `num_versions` ended before the others.

    A cell may have a limit of its own in seconds, such as FedAvg in the benchmark.
    """
    key, limit = budget
    reached = summary["client_updates" if key == "max_updates" else "virtual_seconds"]
    require(
        limit is None or reached >= limit or summary["stopped"] != "num_versions",
        "num_versions",
        summary["num_versions"],
        f"larger, for {name}: it ended the run before {key}={limit}",
        "cells would be compared that learn for different times",
    )


def _best_plan(name: str, values: Sequence[str], seed: int, words: Sequence[str]) -> Plan:
    """The run of a cell's best setting with a fresh seed."""
    own = [
        *words,
        "experiment.seeds=null",
        f"experiment.only=['{name}']",
        "resume=auto",
        "checkpoint_final=false",  # no run is extended: the budget of a study is fixed
    ]
    config = hydra.compose("config", overrides=own)
    own += [*values, f"seed={seed}"]  # after the words, which may set the same keys
    (cell,) = checked_cells(config, own).values()
    return Plan(cell, own)


def _remove_outdated(folder: Path, found: Sequence[results.Found]) -> None:
    """Remove judged runs of settings that are no longer the best, so that no mean has both."""
    best = {each.name: {*each.best} for each in found}
    keys = {each.name: [*each.space] for each in found}
    for path in sorted(folder.glob("*/config.yaml")):
        before = OmegaConf.load(path)
        name, _, seed = path.parent.name.rpartition("-seed")
        if name in best and seed == str(OmegaConf.select(before, "seed")):
            had = {space.override(key, OmegaConf.select(before, key)) for key in keys[name]}
            if had == best[name]:
                continue
        print(f"{path.parent} is removed: its setting is no longer the best one of its cell")
        shutil.rmtree(path.parent)


def _budget(settings: Settings) -> list[str]:
    if settings.seconds is not None:  # else the experiment's updates would end the runs
        return [f"max_seconds={settings.seconds}", "max_updates=null"]
    return [] if settings.updates is None else [f"max_updates={settings.updates}"]


def cells_to_search(
    settings: Settings, config: DictConfig, words: Sequence[str], folder: Path
) -> list["SearchedCell"]:
    """The cells of the experiment, each with its space and the same budget.

    Args:
        settings: of the search.
        config: composed from `words`.
        words: overrides that describe the experiment.
        folder: of the search.

    Raises:
        ValueError: there is no experiment, a key is refused, or budgets differ.
    """
    experiment = config.experiment
    require(
        bool(experiment.cells),
        "experiment",
        "null",
        "the name of an experiment, such as experiment=quickstart",
        "there are no cells to search",
    )
    for key in ("seeds", "parallel", "tuned"):
        given = any(word.startswith(f"experiment.{key}=") for word in words)
        instead = {"seeds": "search.seeds", "parallel": "search.parallel"}.get(key, "nothing")
        require(not given, f"experiment.{key}", "...", f"left out: use {instead}", "of no effect")
    own = [
        *words,
        *_budget(settings),
        "experiment.seeds=null",
        f"experiment.parallel={settings.parallel}",  # it may be refused beside other keys
    ]
    config = hydra.compose("config", overrides=own)
    cells = checked_cells(config, own)
    common = space.words_of(settings.space) or list(experiment.space)
    searched = []
    for name, cell in cells.items():
        more = [] if settings.space else list(experiment.spaces.get(name.partition("@")[0], []))
        replaced = {_key(word) for word in more if word.endswith("=null")}
        parsed = space.parse([word for word in [*common, *more] if _key(word) not in replaced])
        require(
            bool(parsed), "search.space", "''", f"given for cell {name}", "there is nothing to try"
        )
        for key in parsed:
            value = OmegaConf.select(cell, key, default=_UNKNOWN)
            if value is _UNKNOWN or isinstance(value, DictConfig):  # or a group of keys
                known = list(pd.json_normalize(OmegaConf.to_container(cell)).columns)
                told = f"search.space: unknown key {key!r} of cell {name}{nearest(key, known)}"
                raise ValueError(told)
            require(
                key.partition(".")[0] not in OWN,
                "search.space",
                key,
                f"none of {', '.join(OWN)}",
                "the search sets it, or cells would be compared that learn for different times",
            )
        require(
            cell.target_accuracy is None,
            "target_accuracy",
            cell.target_accuracy,
            f"null in a search, for cell {name}",
            "the best trials would end before the others",
        )
        searched.append(SearchedCell(name, cell, parsed, settings, own, folder / "runs" / name))
    budgets = {cell.budget for cell in searched}
    require(
        len(budgets) == 1 and None not in next(iter(budgets)),
        "search.updates",
        settings.updates,
        "given, or search.seconds, unless all cells have the same max_updates or max_seconds",
        "cells would be compared that learn for different times",
    )
    key, limit = searched[0].budget_of_all
    require(
        all(rung < limit for rung in settings.rungs),
        "search.rungs",
        settings.rungs,
        f"below {key}={limit}",
        "a trial would have ended before",
    )
    return searched


def _key(word: str) -> str:
    return word.partition("=")[0]


@dataclass
class SearchedCell:
    """The search in one cell, as far as it is.

    Attributes:
        name: of the cell.
        config: of the cell, before a trial's values.
        space: what is tried.
        settings: of the search.
        words: overrides that describe the experiment.
        folder: of the cell's runs.
    """

    name: str
    config: DictConfig
    space: space.Space
    settings: Settings
    words: Sequence[str]
    folder: Path
    _study: CellStudy | None = None
    _trial: Trial | None = None
    _configs: dict[int, DictConfig] = field(default_factory=dict)
    _rung: int = 0
    _summaries: dict[int, dict[str, Any]] = field(default_factory=dict)
    _waiting: set[int] = field(default_factory=set)

    @property
    def budget(self) -> tuple[str, float | None]:
        """Which limit ends a run, and its value."""
        if self.settings.seconds is not None or self.config.max_updates is None:
            return "max_seconds", self.config.max_seconds
        return "max_updates", self.config.max_updates

    @property
    def study(self) -> CellStudy:
        assert self._study is not None, "`open` comes first"
        return self._study

    @property
    def ended(self) -> int:
        """Trials that have ended."""
        return len(self.study.trials) - (self._trial is not None)

    def open(self, storage: Any) -> None:
        """Begin or continue the study in a storage."""
        configured = {key: OmegaConf.select(self.config, key) for key in self.space}
        first = space.grid(self.space, self.settings.grid, configured) if self.settings.grid else []
        self._study = CellStudy(
            storage,
            self.name,
            self.space,
            first,
            self.settings.trials,
            seed=self.settings.seed,
            rungs=len(self.settings.rungs),
        )
        for trial in self.study.trials:
            if trial.state.is_finished():
                self._tidy(trial.number)

    def todo(self) -> list[Job]:
        """The runs that are needed next and have not ended; empty = all trials have ended."""
        while True:
            if self._trial is None and not self._next():
                return []
            assert self._trial is not None
            jobs = []
            for seed, config in self._configs.items():
                key, _ = self.budget
                config[key] = self._limit
                folder = self._folder(seed)
                summary = earlier.finished(config, folder)
                if summary is not None:
                    self._summaries[seed] = summary
                else:
                    name = f"{self.name}/{self._trial.number}/{seed}"
                    jobs.append(Job(name, Plan(config, self.words), folder, name))
                    self._waiting.add(seed)
            if jobs:
                return jobs
            self._record()

    def take(self, job: Job, ended: Ended) -> list[Job]:
        """Take in a run that ended; return the runs that follow."""
        assert self._trial is not None
        if ended.refused is not None:
            raise ValueError(f"{job.name}: {ended.refused}")
        if ended.error is not None and not isinstance(ended.error, Diverged | Stalled):
            raise ended.error  # of the machine and not of the setting
        seed = int(job.name.rpartition("/")[2])
        self._waiting.remove(seed)
        self._summaries[seed] = ended.summary or {"stopped": str(ended.error)}
        if self._waiting:
            return []
        self._record()
        return self.todo()

    def found(self) -> results.Found:
        """What the search has come to in this cell."""
        return results.Found(
            self.name, self.config.algorithm.name, self.space, self.study, self.folder, self.budget
        )

    @property
    def _limit(self) -> float:
        """Where the runs of the present rung end."""
        rungs = self.settings.rungs
        _, limit = self.budget_of_all
        if self._rung < len(rungs):
            rung = rungs[self._rung]
            return rung if self.budget[0] == "max_seconds" else int(rung)
        return limit

    @property
    def budget_of_all(self) -> tuple[str, float]:
        """As `budget`, once it is known that there is one."""
        key, limit = self.budget
        assert limit is not None
        return key, limit

    def _folder(self, seed: int) -> Path:
        assert self._trial is not None
        return self.folder / str(self._trial.number) / f"seed{seed}"

    def _next(self) -> bool:
        """Go to the trial that was interrupted or to a new one; False = all have ended."""
        following = self.study.next()
        if following is None:
            return False
        self._trial, values, self._rung = following
        self._summaries = {}
        own = [
            *self.words,
            f"experiment.only=[{self.name}]",
            "resume=auto",
            "checkpoint_final=true",
        ]
        # Not with the values: the cell may have keys that the experiment's own algorithm lacks.
        config = hydra.compose("config", overrides=own)
        own += [space.override(key, value) for key, value in values.items()]
        self._configs = {}
        for seed in self.settings.seeds:
            try:
                (self._configs[seed],) = checked_cells(config, [*own, f"seed={seed}"]).values()
            except ValueError as error:
                raise ValueError(f"{self.name}, trial {self._trial.number}: {error}") from None
        return True

    def _record(self) -> None:
        """Record the scores of a rung, and go to the next rung or trial."""
        assert self._trial is not None
        last = self._rung == len(self.settings.rungs)
        spent = sum(each.get("client_updates") or 0 for each in self._summaries.values())
        self._trial.set_user_attr("spent", spent)
        scores = {}
        for seed in self.settings.seeds:
            summary = self._summaries[seed]
            score = results.score_of(summary, self.settings.measure)
            if score is None or summary["stopped"] not in ("updates", "seconds", "num_versions"):
                self.study.fail(self._trial, f"seed {seed}: {summary['stopped']}")
                self._leave()
                return
            if last:
                _require_full_length(f"cell {self.name}", summary, self.budget)
            scores[seed] = score
        if self.study.judge(self._trial, self._rung, scores):
            self._rung, self._summaries = self._rung + 1, {}
        else:
            self._leave()

    def _leave(self) -> None:
        assert self._trial is not None
        self._tidy(self._trial.number)
        self._trial = None

    def _tidy(self, number: int) -> None:
        """Remove what nobody reads of the runs of a trial that has ended."""
        for name in HEAVY:
            for path in self.folder.glob(f"{number}/seed*/{name}"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
