"""The trials of one cell of an experiment."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from optuna.trial import Trial

from fl_app.core.errors import Diverged, RunError, Stalled, require
from fl_app.runner import earlier
from fl_app.runner.jobs import Ended, Job, Plan
from fl_app.runner.validate import checked_cells
from fl_app.search import results, space
from fl_app.search.settings import Settings
from fl_app.search.space import Values
from fl_app.search.study import CellStudy

ENDED = ("updates", "seconds", "num_versions")  # why a run ends that was not disturbed
HEAVY = ("events.jsonl", "model.npz", "checkpoints")  # files of a run that nobody reads after it


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
        budget: which limit ends a run, and its value.
    """

    name: str
    config: DictConfig
    space: space.Space
    settings: Settings
    words: Sequence[str]
    folder: Path
    budget: tuple[str, float]
    _study: CellStudy | None = None
    _trial: Trial | None = None
    _configs: dict[int, DictConfig] = field(default_factory=dict)
    _rung: int = 0
    _summaries: dict[int, dict[str, Any]] = field(default_factory=dict)
    _waiting: set[int] = field(default_factory=set)

    @property
    def study(self) -> CellStudy:
        assert self._study is not None, "`open` comes first"
        return self._study

    @property
    def grid_size(self) -> int:
        """Number of first trials with evenly spread values."""
        return len(self._grid())

    @property
    def ended(self) -> int:
        """Trials that have ended; before `todo`, also one that was interrupted."""
        return len(self.study.trials) - (self._trial is not None)

    def open(self, storage: Any) -> None:
        """Begin or continue the study in a storage."""
        self._study = CellStudy(
            storage,
            self.name,
            self.space,
            self._grid(),
            self.settings.trials,
            seed=self.settings.seed,
            rungs=len(self.settings.rungs),
        )
        for trial in self.study.trials:
            if trial.state.is_finished():
                self._tidy(trial.number)

    def _grid(self) -> list[Values]:
        if not self.settings.grid:
            return []
        configured = {key: OmegaConf.select(self.config, key) for key in self.space}
        return space.grid(self.space, self.settings.grid, configured)

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
                    name = f"{self.name}, trial {self._trial.number}, seed {seed}"
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
        refuse_failure(job, ended)
        seed = int(job.name.rpartition(" ")[2])
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
        rungs, (key, limit) = self.settings.rungs, self.budget
        if self._rung == len(rungs):
            return limit
        return rungs[self._rung] if key == "max_seconds" else int(rungs[self._rung])

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
            f"experiment.only=['{self.name}']",
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
        spent = sum(each.get("client_updates") or 0 for each in self._summaries.values())
        self._trial.set_user_attr("spent", spent)
        scores = {}
        for seed in self.settings.seeds:
            summary = self._summaries[seed]
            score, problem = self._score(summary)
            if score is None:
                self.study.fail(self._trial, f"seed {seed}: {problem}")
                self._leave()
                return
            scores[seed] = score
        if self.study.report(self._trial, self._rung, scores):
            self._rung, self._summaries = self._rung + 1, {}
        else:
            self._leave()

    def _score(self, summary: Mapping[str, Any]) -> tuple[float | None, str]:
        """The score of a run at a rung; or why its trial fails.

        Raises:
            ValueError: `num_versions` ended it early, or runs have no score at all.
        """
        if summary["stopped"] not in ENDED:
            return None, summary["stopped"]
        key, _ = self.budget
        require_full_length(f"cell {self.name}", summary, (key, self._limit))
        measure, score = self.settings.measure, summary["score"]
        require(
            summary.get(f"best_{score}") is not None,
            "search.measure",
            measure,
            f"that of a score, which the runs of cell {self.name} do not have",
            "trials could not be compared",
        )
        return results.score_of(summary, measure), f"{measure} of the {score} is not finite"

    def _leave(self) -> None:
        assert self._trial is not None
        self._tidy(self._trial.number)
        self._trial = None

    def _tidy(self, number: int) -> None:
        """Remove what nobody reads of the runs of a trial that has ended."""
        for name in HEAVY:
            for path in self.folder.glob(f"{number}/seed*/{name}"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def refuse_failure(job: Job, ended: Ended) -> None:
    """Raise an error of the machine or of the algorithm's code, and not of the setting.

    Raises:
        RunError: the run had one.
    """
    if ended.error is not None and not isinstance(ended.error, Diverged | Stalled):
        raise RunError(f"{job.name}: {type(ended.error).__name__}: {ended.error}")


def require_full_length(name: str, summary: Mapping[str, Any], budget: tuple[str, float]) -> None:
    """Refuse a run that `num_versions` ended before the others.

    A cell may have a limit of its own in seconds, such as FedAvg in the benchmark.

    Args:
        name: of the run, for the error.
        summary: of the run.
        budget: which limit ends a run, and its value.

    Raises:
        ValueError: it had fewer updates or seconds.
    """
    key, limit = budget
    reached = summary["client_updates" if key == "max_updates" else "virtual_seconds"]
    require(
        reached >= limit or summary["stopped"] != "num_versions",
        "num_versions",
        summary["num_versions"],
        f"larger, for {name}: it ended the run before {key}={limit}",
        "cells would be compared that learn for different times",
    )
