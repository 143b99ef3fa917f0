"""The study of one cell: which setting comes next, and what became of those before."""

import logging
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from fl_app.search.space import Space, Values

FEW = 4  # complete trials at least, before one ends early


class Alone(JournalFileOpenLock):
    """No lock: one process writes the journal, and holds the lock of the search.

    Optuna's own would be left behind by a kill, and be waited for.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class ByNumber(BaseSampler):
    """Draws a value by Optuna's estimator, as a function of the trials that ended before.

    Optuna's own sampler remembers how often it has drawn. A search that goes on after an
    interruption would try other values.

    Args:
        seed: of the search.
        grid: trials before which values are drawn at random.
    """

    def __init__(self, seed: int, grid: int) -> None:
        self._seed = seed
        self._grid = grid

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        words = f"{self._seed} {study.study_name} {trial.number} {param_name}"
        # Each value is drawn by itself, and of trials only those that ended count.
        sampler = TPESampler(
            seed=zlib.crc32(words.encode()),
            n_startup_trials=self._grid,
            multivariate=False,
            constant_liar=False,
        )
        return sampler.sample_independent(study, trial, param_name, param_distribution)


def open_journal(path: Path) -> JournalStorage:
    """The storage of all studies of a search. A line that a kill has torn is cut off."""
    if path.exists():
        content = path.read_bytes()
        if not content.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)
    optuna.logging.set_verbosity(logging.WARNING)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=Alone(str(path))))


class CellStudy:
    """The trials of one cell, which follow one another.

    Args:
        storage: of the search.
        name: of the cell.
        space: what is tried.
        first: values of the first trials.
        trials: how many there are to be.
        seed: of the search.
        rungs: how many times a trial reports scores before its end.
    """

    def __init__(
        self,
        storage: JournalStorage,
        name: str,
        space: Space,
        first: Sequence[Values],
        trials: int,
        *,
        seed: int,
        rungs: int,
    ) -> None:
        self.name = name
        self.space = space
        self._trials = trials
        self._rungs = rungs
        pruner = MedianPruner(n_startup_trials=max(FEW, len(first))) if rungs else NopPruner()
        self.study = optuna.create_study(
            storage=storage,
            sampler=ByNumber(seed, max(len(first), 1)),
            pruner=pruner,
            study_name=name,
            direction="maximize",
            load_if_exists=True,
        )
        for values in first[len(self.study.get_trials(deepcopy=False)) : trials]:
            self.study.enqueue_trial(values)
        for each in self.trials:
            if each.state == TrialState.RUNNING and each.intermediate_values:
                self._decide(Trial(self.study, each._trial_id))

    @property
    def trials(self) -> list[FrozenTrial]:
        """Those that have begun."""
        known = self.study.get_trials(deepcopy=False)
        return [trial for trial in known if trial.state != TrialState.WAITING]

    def next(self) -> tuple[Trial, Values, int] | None:
        """The trial that was interrupted, or a new one; None = all have ended.

        Returns:
            The trial, its values, and its rung: as many as it has passed.
        """
        known = self.trials
        running = next((trial for trial in known if trial.state == TrialState.RUNNING), None)
        if running is not None:
            trial = Trial(self.study, running._trial_id)
        elif sum(trial.state.is_finished() for trial in known) >= self._trials:
            return None
        else:
            trial = self.study.ask()
        values = {key: _suggest(trial, key, each) for key, each in self.space.items()}
        return trial, values, len(self._scores(trial))

    def report(self, trial: Trial, rung: int, scores: Mapping[int, float]) -> bool:
        """Record what a trial has come to.

        Args:
            trial: of this study.
            rung: from 0; the last one is the end of the trial.
            scores: of every seed; the higher, the better.

        Returns:
            Whether the trial goes on.
        """
        trial.set_user_attr("scores", {str(seed): each for seed, each in scores.items()})
        trial.report(fmean(scores.values()), rung)
        return self._decide(trial)

    def _decide(self, trial: Trial) -> bool:
        """End a trial that is at its end or below the median; return whether it goes on.

        The scores of a trial are recorded before, so that a search that was killed in between
        decides the same without them. Its runs may have gone on by then.
        """
        scores = self._scores(trial)
        if len(scores) > self._rungs:
            self.study.tell(trial, scores[self._rungs])
            return False
        if trial.should_prune():
            self.study.tell(trial, state=TrialState.PRUNED)
            return False
        return True

    def _scores(self, trial: Trial) -> dict[int, float]:
        """The score of a trial at each rung that it has reached."""
        return self.study.get_trials(deepcopy=False)[trial.number].intermediate_values

    def fail(self, trial: Trial, reason: str) -> None:
        """Record that a run of a trial failed, such as one that diverged.

        The estimator takes it for worse than any other trial, or, if it has passed rungs, for one
        that ended at the last of them.
        """
        trial.set_user_attr("error", reason)
        self.study.tell(trial, state=TrialState.PRUNED)

    @property
    def best(self) -> FrozenTrial | None:
        """The complete trial of the highest score, of equal ones the first; None = none."""
        complete = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        return max(complete, key=lambda trial: (trial.value, -trial.number), default=None)


def _suggest(trial: Trial, key: str, distribution: BaseDistribution) -> Any:
    with warnings.catch_warnings():
        # A grid's value that is not of the range, for want of digits, would be taken as it is.
        warnings.filterwarnings("error", message="Fixed parameter")
        if isinstance(distribution, CategoricalDistribution):
            return trial.suggest_categorical(key, distribution.choices)
        if isinstance(distribution, IntDistribution):
            bounds = (distribution.low, distribution.high)
            return trial.suggest_int(key, *bounds, step=distribution.step, log=distribution.log)
        assert isinstance(distribution, FloatDistribution)
        return trial.suggest_float(key, distribution.low, distribution.high, log=distribution.log)
