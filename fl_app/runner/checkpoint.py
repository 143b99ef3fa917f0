"""Checkpoints: a run's whole state in a file that is either all there or not there at all."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fl_app.core.errors import RunError
from fl_app.core.files import atomic_write
from fl_app.core.snapshot import Array, Encoder, decode

FORMAT = "7"
KEPT = 2
ASIDE = ".torn"
PATTERN = "version-*.safetensors"
STRUCTURE = "structure"


class Checkpoints:
    """The checkpoints of one run, of which the last two are kept.

    A file holds arrays (safetensors), among them the JSON of the structure that the others belong
    to, and as metadata a checksum over all. Nothing is ever unpickled.

    Args:
        folder: of the run; the files lie in ``checkpoints`` below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "checkpoints"

    def save(self, version: int, state: Any) -> Path:
        """Write a checkpoint; where that fails, those before stay as they are.

        Args:
            version: of the global model, by which the file is named.
            state: what `fl_app.core.snapshot` can encode.

        Returns:
            The file.

        Raises:
            RunError: it cannot be written.
            TypeError: the state holds a value that cannot be encoded.
        """
        encoder = Encoder()
        structure = json.dumps(encoder.encode(state)).encode()
        arrays = {str(i): np.asarray(array, order="C") for i, array in enumerate(encoder.arrays)}
        # Not as metadata, of which safetensors reads 100 MB: 80,000 orders under way are more.
        arrays[STRUCTURE] = np.frombuffer(structure, np.uint8)
        metadata = {"format": FORMAT, "sha256": _checksum(arrays)}
        path = self._folder / f"version-{version:09d}.safetensors"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(save(arrays, metadata))
        except (OSError, SafetensorError) as error:
            last = next((file.name for file in self._files()), None)
            raise RunError(
                f"the checkpoint of version {version} cannot be written ({error}): the run ends, "
                f"and what was done since {last or 'its beginning'} is lost to a run that goes on"
                + (f"; {last} stands" if last else "")
            ) from error
        for old in self._files()[KEPT:]:
            old.unlink()
        return path

    def load(self) -> Any | None:
        """The state in the last checkpoint; None if there is none.

        A torn file is passed over for the one before it, and set aside.

        Raises:
            ValueError: there are files, and none can be gone on with; it says why.
        """
        problems = {}
        for path in self._files():
            try:
                state = self._read(path)
            except _Torn as error:
                problems[path] = f"{path.name}: {error}"
                continue
            for torn in problems:  # else it would be one of those that are kept
                torn.replace(torn.with_suffix(ASIDE))
            return state
        if problems:
            why = "; ".join(problems.values())
            raise ValueError(f"no checkpoint in {self._folder} can be read: {why}")
        return None

    def _files(self) -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob(PATTERN), reverse=True)

    def _read(self, path: Path) -> Any:
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise _Torn(f"torn ({error})") from error
        if metadata.get("format") != FORMAT:
            raise ValueError(
                f"{path} is of checkpoint format {metadata.get('format')}, and this version reads "
                f"format {FORMAT}: go on with the version that wrote it, or remove the "
                "run's folder to begin anew"
            )
        if _checksum(arrays) != metadata["sha256"]:
            raise _Torn("its checksum does not fit")
        structure = json.loads(arrays.pop(STRUCTURE).tobytes())
        return decode(structure, [arrays[str(place)] for place in range(len(arrays))])


class _Torn(Exception):
    """A file that is not whole."""


def _checksum(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
