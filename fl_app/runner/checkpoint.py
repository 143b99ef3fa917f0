"""Checkpoints: a run's whole state in one file, which is written as a whole or not at all."""

import hashlib
from pathlib import Path
from typing import Any

from fl_app.core.files import atomic_write
from fl_app.core.snapshot import dumps, loads

FORMAT = b"fl_app checkpoint 16\n"
NUM_KEPT = 2
CHECKSUM = 32  # bytes
SUFFIX, ASIDE = ".checkpoint", ".torn"
PATTERN = "version-*[st]"  # those of earlier versions end with .safetensors


class Checkpoints:
    """The checkpoints of one run, of which the last two are kept.

    A file holds a checksum over the rest, the format, and the state (`fl_app.core.snapshot`).

    Args:
        folder: of the run; the files lie in ``checkpoints`` below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "checkpoints"

    def save(self, version: int, state: Any) -> Path:
        """Write a checkpoint; if that fails, earlier ones stay as they are.

        Args:
            version: of the global model, by which the file is named.
            state: what `fl_app.core.snapshot` can hold.

        Returns:
            The file.

        Raises:
            OSError: it cannot be written.
            ValueError: the state holds a value that no checkpoint can hold.
        """
        content = FORMAT + dumps(state)
        path = self._folder / f"version-{version:09d}{SUFFIX}"
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(hashlib.sha256(content).digest())
            file.write(content)
        for old in self._files()[NUM_KEPT:]:
            old.unlink()
        return path

    def load(self) -> Any | None:
        """The state in the last checkpoint; None if there is none.

        A torn file is set aside, and the one before it is read instead.

        Raises:
            ValueError: there are checkpoints, but none can be resumed; the message says why.
        """
        problems = {}
        for path in self._files():
            try:
                content = path.read_bytes()
            except OSError as error:
                problems[path] = f"{path.name}: torn ({error})"
                continue
            checksum, content = content[:CHECKSUM], content[CHECKSUM:]
            if path.suffix == SUFFIX and hashlib.sha256(content).digest() != checksum:
                problems[path] = f"{path.name}: torn (its checksum does not fit)"
                continue
            if not content.startswith(FORMAT):
                raise ValueError(
                    f"{path} was written by another version of this project: resume with that "
                    "version, or remove the run's folder to start over"
                )
            state = loads(content[len(FORMAT) :])
            for torn in problems:  # else it would count as one of `NUM_KEPT`
                torn.replace(torn.with_suffix(ASIDE))
            return state
        if problems:
            reasons = "; ".join(problems.values())
            text = f"no checkpoint in {self._folder} can be read: {reasons}; begin in a new folder"
            raise ValueError(text)
        return None

    def _files(self) -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob(PATTERN), reverse=True)
