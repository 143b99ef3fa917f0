"""One study of Optuna for each cell, all in one journal that survives a kill."""

import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from fl_app.search.space import Space, override, suggest


def open_journal(path: Path) -> JournalStorage:
    """The storage of a search; no other process may use it.

    A kill may have left a torn line, and a lock of Optuna, which would block: both are removed.
    """
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
    Path(f"{path}.lock").unlink(missing_ok=True)
    optuna.logging.set_verbosity(logging.WARNING)
    return JournalStorage(JournalFileBackend(str(path)))


@dataclass(eq=False)
class CellStudy:
    """The trials of one cell, one after the other.

    A trial depends on the seed and on the trials before it, and not on interruptions.

    Args:
        storage: of the search.
        name: of the cell.
        space: of the cell.
        first: values of the first trials.
        trials: total number of trials.
        seed: of the search.
    """

    storage: JournalStorage
    name: str
    space: Space
    first: Sequence[Mapping[str, Any]]
    trials: int
    seed: int

    def __post_init__(self) -> None:
        self.study = optuna.create_study(
            storage=self.storage,
            study_name=self.name,
            direction="maximize",
            load_if_exists=True,
        )
        for values in self.first[len(self._trials()) : self.trials]:
            self.study.enqueue_trial(dict(values))

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def begin(self, number: int) -> bool:
        """Begin or resume a trial; False = it has ended."""
        trials = self._trials()
        state = trials[number].state if number < len(trials) else TrialState.WAITING
        if state.is_finished():
            return False
        self._trial = self._resume(number) if state == TrialState.RUNNING else self.study.ask()
        for key, distribution in self.space.items():
            # A new sampler for each key: an interruption would lose how often an old one has drawn.
            self.study.sampler = TPESampler(
                seed=zlib.crc32(f"{self.seed} {self.name} {number} {key}".encode()),
                n_startup_trials=max(len(self.first), 1),
                multivariate=False,
                constant_liar=False,
            )
            suggest(self._trial, key, distribution)
        return True

    def _resume(self, number: int) -> Trial:
        study = self.storage.get_study_id_from_name(self.name)
        trial = self.storage.get_trial_id_from_study_id_trial_number(study, number)
        return Trial(self.study, trial)

    @property
    def words(self) -> list[str]:
        """The trial's values as overrides."""
        return [override(key, self._trial.params[key]) for key in self.space]

    def complete(self, scores: Mapping[int, float]) -> None:
        """End the trial with its score for every seed; the higher, the better."""
        self._trial.set_user_attr("scores", {str(seed): score for seed, score in scores.items()})
        self.study.tell(self._trial, fmean(scores.values()))

    def fail(self, reason: str) -> None:
        """End the trial because a run failed. The estimator ranks it below all others."""
        self._trial.set_user_attr("error", reason)
        self.study.tell(self._trial, state=TrialState.PRUNED)

    @property
    def best(self) -> FrozenTrial | None:
        """The completed trial with the highest score, the first of equal ones; None = none."""
        complete = [trial for trial in self._trials() if trial.state == TrialState.COMPLETE]
        return max(complete, key=lambda trial: trial.value or 0.0, default=None)

    @property
    def setting(self) -> list[str]:
        """The best setting as overrides; empty if no trial was completed."""
        best = self.best
        return [] if best is None else [override(key, best.params[key]) for key in self.space]
