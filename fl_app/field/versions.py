"""The environments of a device, side by side: the one that it was installed with, and updates.

``python -m fl_app.field.versions FOLDER`` prints the one to start. ``start.sh`` asks it, with the
Python that the device was installed with, so that an update that does not work cannot prevent its
own removal. This module needs nothing but Python.

An update is on trial until it has carried out an order. It is given up if that order fails, or if
it was started `STARTS` times without one: then it cannot even begin. What is given up is not tried
again.

``versions/`` of the device's folder holds an environment for each release, ``record.json``, and the
link ``current``. Each is replaced atomically, and what is written in between can be begun again.
"""

import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fl_app.core.files import atomic_write, sync_folder

FOLDER, RECORD, CURRENT, COMPLETE = "versions", "record.json", "current", ".complete"
STARTS = 3
NOT_STARTED = f"it was started {STARTS} times and carried out no order"
LONGEST = 200  # letters of a reason


@dataclass
class Record:
    """What a device remembers of updates.

    Attributes:
        newest: largest number of a release that it has had; 0 = none.
        trial: number of the release that is on trial; 0 = none.
        starts: of the release on trial.
        before: number of the release before the one on trial; 0 = as it was installed.
        failed: number of the release that was given up last; 0 = none.
        reason: why.
    """

    newest: int = 0
    trial: int = 0
    starts: int = 0
    before: int = 0
    failed: int = 0
    reason: str = ""


@dataclass
class Versions:
    """The environments of a device.

    Args:
        kit: the device's folder.

    Attributes:
        folder: of the environments; it need not exist.
    """

    kit: Path
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.kit / FOLDER

    @property
    def record(self) -> Record:
        """What is remembered; nothing if it cannot be read."""
        try:
            found = json.loads((self.folder / RECORD).read_text())
            return Record(**found)
        except (OSError, ValueError, TypeError):
            return Record()

    @property
    def current(self) -> int:
        """Number of the release in use; 0 = as it was installed."""
        try:
            number = int(os.readlink(self.folder / CURRENT))
        except (OSError, ValueError):
            return 0
        return number if self.complete(number) else 0

    def environment(self, number: int) -> Path:
        """The environment of a release."""
        return self.folder / str(number)

    def complete(self, number: int) -> bool:
        """Whether the environment of a release was installed to its end."""
        return (self.environment(number) / COMPLETE).is_file()

    def start(self) -> Path | None:
        """The environment to start, which counts as a start if it is on trial.

        Returns:
            The environment; None = the one that the device was installed with.
        """
        record = self.record
        if record.trial and record.trial != self.current:  # interrupted before it was in use
            record.trial = 0
            self._remember(record)
        if record.trial and record.starts >= STARTS:
            self.give_up(NOT_STARTED)
        elif record.trial:
            record.starts += 1
            self._remember(record)
        number = self.current
        return self.environment(number) if number else None

    def new(self, number: int) -> Path:
        """Remove what is left of an environment, and remember its release.

        Returns:
            The path at which the environment is to be installed.
        """
        self.folder.mkdir(exist_ok=True)
        record = self.record
        record.newest = max(record.newest, number)
        self._remember(record)
        shutil.rmtree(self.environment(number), ignore_errors=True)
        return self.environment(number)

    def finish(self, number: int) -> None:
        """Mark an environment as installed to its end."""
        with atomic_write(self.environment(number) / COMPLETE):
            pass

    def switch(self, number: int) -> None:
        """Use a release from the next start on, on trial."""
        record = self.record
        record.before, record.trial, record.starts = self.current, number, 0
        self._remember(record)
        self._link(number)
        self._remove_others({record.before, number})

    def confirm(self) -> None:
        """End the trial of the release in use: it has carried out an order."""
        record = self.record
        record.trial = 0
        self._remember(record)

    def refuse(self, number: int, reason: str) -> None:
        """Never use a release.

        Args:
            number: of the release.
            reason: why.
        """
        record = self.record
        record.failed, record.reason, record.trial = number, reason[:LONGEST], 0
        self._remember(record)
        shutil.rmtree(self.environment(number), ignore_errors=True)

    def give_up(self, reason: str) -> None:
        """Go back to the release before the one on trial, from the next start on.

        Args:
            reason: why.
        """
        record = self.record
        # The link first: interrupted in between, the release is not in use, and tried once more.
        self._link(record.before)
        record.failed, record.reason, record.trial = record.trial, reason[:LONGEST], 0
        self._remember(record)

    @property
    def told(self) -> str:
        """What the server is told: the release in use, and what became of another one."""
        record, current = self.record, self.current
        words = [str(current)] if current else []
        if record.trial:
            words.append("on trial")
        elif record.failed > current:
            words.append(f"{record.failed} failed")
        return ", ".join(words)

    def _link(self, number: int) -> None:
        """Let ``current`` name a release, or nothing."""
        link = self.folder / CURRENT
        if number:
            draft = link.with_suffix(".new")
            draft.unlink(missing_ok=True)
            draft.symlink_to(str(number))
            draft.replace(link)
        else:
            link.unlink(missing_ok=True)
        sync_folder(self.folder)

    def _remember(self, record: Record) -> None:
        with atomic_write(self.folder / RECORD) as file:
            file.write(json.dumps(asdict(record)).encode())

    def _remove_others(self, kept: set[int]) -> None:
        for path in self.folder.iterdir():
            if path.name.isdecimal() and int(path.name) not in kept:
                shutil.rmtree(path, ignore_errors=True)


def clone(environment: Path, copy: Path) -> None:
    """Copy a virtual environment to another path, where its commands run its own Python.

    Files are hard links where that is allowed: nothing here writes into a file that is there.

    Args:
        environment: to copy.
        copy: a path at which there is nothing.

    Raises:
        OSError: the disk is full.
    """

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # another disk, another owner
            shutil.copy2(source, target)

    shutil.copytree(environment, copy, symlinks=True, copy_function=link)
    with suppress(FileNotFoundError):
        (copy / COMPLETE).unlink()
    theirs, ours = (f"{where}/bin/python".encode() for where in (environment, copy))
    for command in (copy / "bin").iterdir():
        if command.is_symlink() or not command.is_file():
            continue
        content = command.read_bytes()
        if content.startswith(b"#!") and theirs in content:
            mode = command.stat().st_mode
            command.unlink()  # it may be a link to the other's
            command.write_bytes(content.replace(theirs, ours))
            command.chmod(mode)


def main() -> None:
    """The command line."""
    print(Versions(Path(sys.argv[1]).resolve()).start() or sys.prefix)


if __name__ == "__main__":
    main()
