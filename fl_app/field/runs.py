"""See a run through: submit it, and again with ``resume=auto`` where it or its SuperLink died."""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from fl_app.core.errors import RunError, require
from fl_app.field.control import Unreachable
from fl_app.field.supervise import delays

POLL = 5.0  # seconds
ATTEMPTS = 3  # in a row that come to nothing, after which there is no other
RESUME = "resume=auto"
OVERWRITE = "overwrite=true"
EVENTS = "events.jsonl"
CHECKPOINTS = "checkpoints/version-*.safetensors"

Answer = TypeVar("Answer")


class Link(Protocol):
    """A SuperLink; all raise ``Unreachable`` where it does not answer."""

    def online(self) -> int:
        """How many nodes are online."""

    def under_way(self, output: Path) -> tuple[int, list[str]] | None:
        """The run that writes to a folder and has not ended, if there is one: id, overrides."""

    def submit(self, overrides: Sequence[str], output: Path) -> int:
        """Submit a run; its id."""

    def status(self, run_id: int) -> tuple[str, str]:
        """A run's status, such as "running" or "finished:completed", and details of it."""


class Supervisor:
    """Submits a run until it is complete.

    Args:
        link: the SuperLink.
        pause: waits for seconds.
        tell: what happens.
    """

    def __init__(
        self,
        link: Link,
        *,
        pause: Callable[[float], None] = time.sleep,
        tell: Callable[[str], None] = print,
    ) -> None:
        self._link = link
        self._pause = pause
        self._tell = tell

    def see_through(self, overrides: Sequence[str], output: Path) -> None:
        """Submit a run until it is complete.

        One that is under way in `output`, whoever submitted it, is seen through in its place: two
        would write to the same files. One that has written into `output` before is resumed from the
        start. One that came to an end of its own, because it diverged, say, would do so again, and
        is not submitted again.

        Args:
            overrides: as after ``python -m fl_app``.
            output: the run's folder.

        Raises:
            ValueError: there is a run in `output` that has ended, and `overrides` do not say that
                it is to go on, or one that is under way with other overrides, or `overrides` would
                replace what there is.
            RunError: the run was stopped, ended early, or does not get anywhere.
        """
        require(
            OVERWRITE not in overrides,
            "overwrite",
            "true",
            "left out here",
            "whenever the run died, it would begin anew",
        )
        require(
            _ending(output) is None or RESUME in overrides,
            "--output",
            output,
            f"a folder without a run that has ended, or one that is to go on ({RESUME})",
            "its files would be lost",
        )
        waits, in_vain, furthest = delays(), 0, _reached(output)
        while True:
            try:
                run_id = self._run(overrides, output)
            except RunError as error:  # it may have died after it had said that it was there
                reason = str(error)
            else:
                status, details = self._outcome(run_id)
                if status == "finished:completed":
                    return
                reason = f"run {run_id} is {status}{f': {details}' if details else ''}"
                if status == "finished:stopped":
                    raise RunError(reason)
                if ending := _ending(output):
                    raise RunError(f"{reason}; it ended with {ending}")
            reached = _reached(output)
            if any(now > before for now, before in zip(reached, furthest, strict=True)):
                waits, in_vain = delays(), 0
            else:
                in_vain += 1
            furthest = max(reached[0], furthest[0]), max(reached[1], furthest[1])
            if in_vain == ATTEMPTS:
                raise RunError(f"{reason}; {ATTEMPTS} attempts in a row have come to nothing")
            wait = next(waits)
            self._tell(f"{reason}; again in {wait:.0f} s")
            self._pause(wait)

    def _run(self, overrides: Sequence[str], output: Path) -> int:
        """The id of the run that is under way in `output`, or else of a new one."""
        self._wait_for_a_node()
        words = [*overrides]
        if (output / EVENTS).exists() and not any(map(_is_about_resuming, words)):
            words.append(RESUME)
        return self._patiently(partial(self._seek_or_submit, words, output))

    def _seek_or_submit(self, words: Sequence[str], output: Path) -> int:
        """Both in one breath: somebody else may have waited for the same."""
        found = self._link.under_way(output)
        if found is None:
            run_id = self._link.submit(words, output)
            self._tell(f"run {run_id} submitted: {' '.join(words)}")
            return run_id
        run_id, others = found
        theirs, ours = (
            [word for word in told if not _is_about_resuming(word)] for told in (others, words)
        )
        require(
            theirs == ours,
            "--output",
            output,
            f"a folder in which no other run is under way, but run {run_id} is ("
            f"{' '.join(theirs)} instead of {' '.join(ours)})",
            "two would write to the same files",
        )
        self._tell(f"run {run_id} is under way in {output}: no other is submitted")
        return run_id

    def _outcome(self, run_id: int) -> tuple[str, str]:
        last = ""
        while True:
            status, details = self._patiently(partial(self._link.status, run_id))
            if status != last:
                self._tell(f"run {run_id} is {status}")
                last = status
            if status.startswith("finished"):
                return status, details
            self._pause(POLL)

    def _wait_for_a_node(self) -> None:
        """Else the run would give up after a minute, and after a power cut boards take longer."""
        told = False
        while not self._patiently(self._link.online):
            if not told:
                self._tell("waiting for a node to come online")
                told = True
            self._pause(POLL)

    def _patiently(self, question: Callable[[], Answer]) -> Answer:
        """An answer of the SuperLink, which may be about to be restarted."""
        told = False
        while True:
            try:
                return question()
            except Unreachable as error:
                if not told:
                    self._tell(f"waiting for the SuperLink: {error}")
                    told = True
                self._pause(POLL)


def _is_about_resuming(word: str) -> bool:
    return word.startswith("resume=")


def _reached(output: Path) -> tuple[int, int]:
    """Version of the newest checkpoint and bytes of the event log; -1 without one.

    The log alone would not tell: a run that goes on from a checkpoint cuts it and writes it anew.
    """
    events = output / EVENTS
    versions = (int(path.stem.split("-")[1]) for path in output.glob(CHECKPOINTS))
    return max(versions, default=-1), events.stat().st_size if events.exists() else -1


def _ending(output: Path) -> str | None:
    """Why the run in `output` ended; None if it did not, or was only interrupted."""
    summary = output / "summary.json"
    if not summary.exists():
        return None
    stopped: str = json.loads(summary.read_text())["stopped"]
    return None if stopped == "interrupted" else stopped
