"""Supervises a run: submits it, and resumes it if its ServerApp or its SuperLink fails."""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from omegaconf import OmegaConf

from fl_app.core.errors import RunError, require
from fl_app.field.control import SuperLink, Unreachable
from fl_app.field.processes import delays
from fl_app.record.history import History
from fl_app.record.log import Log
from fl_app.record.progress import Progress

POLL = 5.0  # seconds between two questions to the SuperLink
EVERY = 60.0  # seconds between two lines about a run
ATTEMPTS = 3  # attempts in a row without progress, after which the supervisor gives up
RESUME = "resume=auto"
OVERWRITE = "overwrite=true"
EVENTS = "events.jsonl"
CHECKPOINTS = "checkpoints/version-*.safetensors"

Answer = TypeVar("Answer")


class Watch:
    """Shows how far a run is, by its event log: a bar on a terminal, or else a line a minute.

    Args:
        run_id: for the label.
        output: the run's folder.
        wall: seconds of the wall clock.
    """

    def __init__(
        self, run_id: int, output: Path, wall: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._history = Log(output / EVENTS), History()
        self._read()
        versions = None
        with suppress(OSError):
            versions = OmegaConf.select(OmegaConf.load(output / "config.yaml"), "num_versions")
        self._progress = Progress(
            self._history, versions or math.inf, f"run {run_id}", every=EVERY, wall=wall
        )

    def look(self) -> None:
        """Take in what has happened, and show it if it is time."""
        self._read()
        self._progress.look()

    def close(self) -> None:
        """Show the last state."""
        self._read()
        self._progress.close()

    def _read(self) -> None:
        for event in self._log.read():
            self._history.emit(event)


class Supervisor:
    """Submits a run until it is complete.

    Args:
        link: the SuperLink.
        pause: waits for a number of seconds.
        tell: reports progress to the user.
        watch: shows how far a run is, by its id and folder.
    """

    def __init__(
        self,
        link: SuperLink,
        *,
        pause: Callable[[float], None] = time.sleep,
        tell: Callable[[str], None] = print,
        watch: Callable[[int, Path], Watch] = Watch,
    ) -> None:
        self._link = link
        self._pause = pause
        self._tell = tell
        self._watch = watch

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
                unfinished run has other overrides, or `overrides` have ``overwrite=true``.
            OSError: nobody can write to `output`.
            RunError: the run was stopped, ended early, or makes no progress.
        """
        require(
            OVERWRITE not in overrides,
            "overwrite",
            "true",
            "left out here",
            "a run that died would start from the beginning",
        )
        require(
            _reason_of_end(output) is None or RESUME in overrides,
            "--output",
            output,
            f"a folder without a finished run, unless the run is to be resumed ({RESUME})",
            "its files would be lost",
        )
        output.mkdir(parents=True, exist_ok=True)
        waits, fruitless, furthest = delays(), 0, _progress(output)
        while True:
            before = _changed(output)
            try:
                run_id = self._run(overrides, output)
            except RunError as error:  # the SuperLink may die after it answered `under_way`
                reason = str(error)
            else:
                status, details = self._outcome(run_id, output, before)
                if status == "finished:completed":
                    return
                reason = f"run {run_id} is {status}{f': {details}' if details else ''}"
                if status == "finished:stopped":
                    raise RunError(reason)
                if ending := _reason_of_end(output):
                    raise RunError(f"{reason}; it ended with {ending}")
            reached = _progress(output)
            if any(now > before for now, before in zip(reached, furthest, strict=True)):
                waits, fruitless = delays(), 0
            else:
                fruitless += 1
            furthest = max(reached[0], furthest[0]), max(reached[1], furthest[1])
            if fruitless == ATTEMPTS:
                raise RunError(f"{reason}; {ATTEMPTS} attempts in a row have made no progress")
            wait = next(waits)
            self._tell(f"{reason}; again in {wait:.0f} s")
            self._pause(wait)

    def _run(self, overrides: Sequence[str], output: Path) -> int:
        """Return the id of the unfinished run in `output`, or submit a new run."""
        self._wait_for_a_node()
        words = [*overrides]
        if (output / EVENTS).exists() and not any(map(_sets_resume, words)):
            words.append(RESUME)
        return self._answer(partial(self._seek_or_submit, words, output))

    def _seek_or_submit(self, words: Sequence[str], output: Path) -> int:
        """Ask and submit in one step, because another supervisor may submit the same run."""
        found = self._link.under_way(output)
        if found is None:
            run_id = self._link.submit(words, output)
            self._tell(f"run {run_id} submitted: {' '.join(words)}")
            return run_id
        run_id, others = found
        theirs, ours = (
            [word for word in words_of_run if not _sets_resume(word)]
            for words_of_run in (others, words)
        )
        require(
            theirs == ours,
            "--output",
            output,
            f"a folder in which no other run is under way, but run {run_id} is ("
            f"{' '.join(theirs)} instead of {' '.join(ours)})",
            "two runs would write to the same files",
        )
        self._tell(f"run {run_id} is under way in {output}: no other run is submitted")
        return run_id

    def _outcome(self, run_id: int, output: Path, before: int) -> tuple[str, str]:
        """Wait for the end of a run; its last status and details.

        Args:
            run_id: of the run.
            output: its folder.
            before: when the event log was changed last before the run was submitted.
        """
        last, watch = "", None
        with ExitStack() as stack:
            while True:
                status, details = self._answer(partial(self._link.status, run_id))
                if status != last:
                    self._tell(f"run {run_id} is {status}")
                    last = status
                # A log that is resumed has been cut to its checkpoint once it has changed.
                if watch is None and _changed(output) != before:
                    watch = stack.enter_context(closing(self._watch(run_id, output)))
                if watch is not None:
                    watch.look()
                if status.startswith("finished"):
                    return status, details
                self._pause(POLL)

    def _wait_for_a_node(self) -> None:
        """Wait for a node: a run gives up after a minute, and boards may boot for longer."""
        reported = False
        while not self._answer(self._link.online):
            if not reported:
                self._tell("waiting for a node to come online")
                reported = True
            self._pause(POLL)

    def _answer(self, question: Callable[[], Answer]) -> Answer:
        """Repeat a question until the SuperLink answers; it may be restarting."""
        reported = False
        while True:
            try:
                return question()
            except Unreachable as error:
                if not reported:
                    self._tell(f"waiting for the SuperLink: {error}")
                    reported = True
                self._pause(POLL)


def _changed(output: Path) -> int:
    """When the event log was changed last; 0 = there is none."""
    with suppress(FileNotFoundError):
        return (output / EVENTS).stat().st_mtime_ns
    return 0


def _sets_resume(word: str) -> bool:
    return word.startswith("resume=")


def _progress(output: Path) -> tuple[int, int]:
    """Return the newest checkpoint's version and the event log's bytes; -1 if there is none.

    The log alone is not enough, because a resumed run truncates it to the checkpoint.
    """
    events = output / EVENTS
    versions = (int(path.stem.split("-")[1]) for path in output.glob(CHECKPOINTS))
    return max(versions, default=-1), events.stat().st_size if events.exists() else -1


def _reason_of_end(output: Path) -> str | None:
    """Return why the run in `output` ended; None if it has not, or was only interrupted."""
    summary = output / "summary.json"
    if not summary.exists():
        return None
    stopped: str = json.loads(summary.read_text())["stopped"]
    return None if stopped == "interrupted" else stopped
