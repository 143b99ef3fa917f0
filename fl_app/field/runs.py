"""Supervises a run: submits it, and resumes it if its ServerApp or its SuperLink fails."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from omegaconf import OmegaConf

from fl_app.core.errors import RunError, require
from fl_app.core.events import Failed
from fl_app.field.control import SuperLink, Unreachable
from fl_app.record.folder import EVENTS, REFUSED, read_summary
from fl_app.record.history import History
from fl_app.record.log import Log
from fl_app.record.progress import Progress

POLL = 5.0  # seconds between two questions to the SuperLink
EVERY = 60.0  # seconds between two lines about a run
RETRY = 5.0  # seconds before a run is submitted again; doubled after an attempt without progress
ATTEMPTS = 3  # attempts in a row without progress, after which the supervisor gives up
RESUME = "resume=auto"

Answer = TypeVar("Answer")


@dataclass
class Supervisor:
    """Submits a run until it is complete, and shows its progress.

    Args:
        link: the SuperLink.
        pause: waits for a number of seconds.
        tell: receives messages for the user.
        wall: seconds of the wall clock.

    Attributes:
        run_id: Flower's number of the latest attempt.
        history: of the run, by its event log.
    """

    link: SuperLink
    _: KW_ONLY
    pause: Callable[[float], None] = time.sleep
    tell: Callable[[str], None] = print
    wall: Callable[[], float] = time.monotonic
    run_id: int | None = field(default=None, init=False)
    history: History = field(default_factory=History, init=False)

    def complete(self, overrides: Sequence[str], output: Path) -> None:
        """Submit a run until it is complete.

        If an unfinished run writes to `output`, it is supervised instead, whoever submitted it,
        because two runs would write to the same files. If `output` holds files of an earlier run,
        that run is resumed. A run that ended by itself, for example because it diverged, is not
        submitted again, because it would end in the same way.

        Args:
            overrides: as after ``python -m fl_app``.
            output: the run's folder.

        Raises:
            ValueError: `output` holds a finished run and `overrides` lack ``resume=auto``, or an
                unfinished run has other overrides.
            OSError: nobody can write to `output`.
            RunError: the run was stopped, ended early, or makes no progress.
        """
        fits = _reason_of_end(output) is None or RESUME in overrides
        bound = f"a folder without a finished run, unless the run is to be resumed ({RESUME})"
        require(fits, "--output", output, bound, "its files would be lost")
        output.mkdir(parents=True, exist_ok=True)
        (output / REFUSED).unlink(missing_ok=True)
        fruitless, furthest = 0, _log_of(output)[0]
        while True:
            _, before = _log_of(output)
            try:
                run_id = self.run_id = self._run(overrides, output)
            except RunError as error:  # the SuperLink may die after it answered `under_way`
                reason = str(error)
            else:
                status, details = self._outcome(run_id, output, before)
                self.run_id = None
                if status == "finished:completed":
                    return
                reason = f"run {run_id} is {status}{f': {details}' if details else ''}"
                if status == "finished:stopped":
                    raise RunError(f"{reason}; the same command goes on with it")
                if (refusal := output / REFUSED).exists():
                    text = refusal.read_text(encoding="utf-8")
                    raise RunError(f"run {run_id} was refused: {text}")
                if ending := _reason_of_end(output):
                    raise RunError(f"{reason}; it ended with {ending}")
            # A resumed run cuts its log back to the checkpoint.
            size, _ = _log_of(output)
            fruitless = 0 if size > furthest else fruitless + 1
            furthest = max(size, furthest)
            if fruitless == ATTEMPTS:
                raise RunError(f"{reason}; {ATTEMPTS} attempts in a row have made no progress")
            wait = RETRY * 2**fruitless
            self.tell(f"{reason}; again in {wait:.0f} s")
            self.pause(wait)

    def _run(self, overrides: Sequence[str], output: Path) -> int:
        """Return the id of the unfinished run in `output`, or submit a new run."""
        waits = False
        while "online" not in self._answer(self.link.registered).values():
            if not waits:  # a run gives up after a minute, and boards may boot for longer
                self.tell("waiting for a node to come online")
            waits = True
            self.pause(POLL)
        words = [*overrides]
        if (output / EVENTS).exists() and _without_resume(words) == words:
            words.append(RESUME)
        return self._answer(partial(self._seek_or_submit, words, output))

    def _seek_or_submit(self, words: Sequence[str], output: Path) -> int:
        """Ask and submit in one step, because another supervisor may submit the same run."""
        unfinished = self.link.under_way(output)
        if unfinished is None:
            run_id = self.link.submit(words, output)
            self.tell(f"run {run_id} submitted: {' '.join(words)}")
            return run_id
        run_id, their_words = unfinished
        theirs, ours = _without_resume(their_words), _without_resume(words)
        difference = f"{' '.join(theirs)} instead of {' '.join(ours)}"
        bound = f"a folder in which no other run is under way, but run {run_id} is ({difference})"
        effect = "two runs would write to the same files"
        require(theirs == ours, "--output", output, bound, effect)
        self.tell(f"run {run_id} is under way in {output}: no other run is submitted")
        return run_id

    def _outcome(self, run_id: int, output: Path, before: int) -> tuple[str, str]:
        """Wait for the end of a run; its last status and details.

        Args:
            run_id: of the run.
            output: its folder.
            before: last change of the event log before the run was submitted.
        """
        last, log, progress = "", Log(output / EVENTS), None
        with ExitStack() as stack:
            while True:
                status, details = self._answer(partial(self.link.status, run_id))
                if status != last:
                    self.tell(f"run {run_id} is {status}")
                    last = status
                # A resumed run first cuts its log to the checkpoint, so wait for a change.
                if progress is not None:
                    self._read(log)
                    progress.look()
                elif _log_of(output)[1] != before:
                    self.history = History()
                    self._read(log)
                    progress = stack.enter_context(closing(self._progress(run_id, output)))
                if status.startswith("finished"):
                    return status, details
                self.pause(POLL)

    def _read(self, log: Log) -> None:
        for event in log.read():
            if isinstance(event, Failed) and not self.history.failures:
                reason = event.reason.partition("\n")[0]
                self.tell(f"the first failure, of client {event.client}: {reason}")
            self.history.emit(event)

    def _progress(self, run_id: int, output: Path) -> Progress:
        versions = None
        with suppress(OSError):
            versions = OmegaConf.select(OmegaConf.load(output / "config.yaml"), "num_versions")
        limits = (versions, None, None)
        return Progress(self.history, f"run {run_id}", limits, every=EVERY, wall=self.wall)

    def _answer(self, question: Callable[[], Answer]) -> Answer:
        """Repeat a question until the SuperLink answers; it may be restarting."""
        reported = False
        while True:
            try:
                return question()
            except Unreachable as error:
                if not reported:
                    self.tell(f"waiting for the SuperLink: {error}")
                reported = True
                self.pause(POLL)


def _without_resume(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("resume=")]


def _log_of(output: Path) -> tuple[int, int]:
    """Bytes of the event log, and the time of its last change; -1 if there is none."""
    with suppress(FileNotFoundError):
        status = (output / EVENTS).stat()
        return status.st_size, status.st_mtime_ns
    return -1, -1


def _reason_of_end(output: Path) -> str | None:
    """Return why the run in `output` ended; None if it has not, or was only interrupted."""
    stopped = read_summary(output).get("stopped")
    return None if stopped == "interrupted" else stopped
