"""Checkpoints: a run's whole state in a file that is either all there or not there at all."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fl_app.core.files import whole
from fl_app.core.snapshot import Array, Freezer, thaw

FORMAT = "1"
KEPT = 2
PATTERN = "version-*.safetensors"


class Checkpoints:
    """The checkpoints of one run, of which the last two are kept.

    A file holds arrays (safetensors) and, as its metadata, the structure they belong to, the run's
    configuration and a checksum over both. Nothing is ever unpickled.

    Args:
        folder: of the run; the files lie in ``checkpoints`` below it.
        configuration: of the run; a checkpoint of another one is refused.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        self._folder = folder / "checkpoints"
        self._configuration = json.dumps(configuration, sort_keys=True)

    def save(self, version: int, state: Any) -> Path:
        """Write a checkpoint.

        Args:
            version: of the global model, by which the file is named.
            state: what `fl_app.core.snapshot` can keep.

        Returns:
            The file.
        """
        freezer = Freezer()
        text = json.dumps(freezer.freeze(state))
        arrays = {str(i): np.asarray(array, order="C") for i, array in enumerate(freezer.arrays)}
        metadata = {
            "format": FORMAT,
            "configuration": self._configuration,
            "state": text,
            "sha256": _checksum(text, arrays),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"version-{version:09d}.safetensors"
        with whole(path) as file:
            file.write(save(arrays, metadata))
        for old in self._files()[KEPT:]:
            old.unlink()
        return path

    def load(self) -> Any | None:
        """The state in the last checkpoint; None if there is none.

        A torn file is passed over for the one before it.

        Raises:
            ValueError: there are files, and none can be gone on with; it says why.
        """
        problems = []
        for path in self._files():
            try:
                return self._read(path)
            except _Torn as error:
                problems.append(f"{path.name}: {error}")
        if problems:
            raise ValueError(f"no checkpoint in {self._folder} can be read: {'; '.join(problems)}")
        return None

    def clear(self) -> None:
        """Remove what an earlier run left."""
        for path in self._files():
            path.unlink()

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
                f"{path} is not a checkpoint of this program, or of another version of it "
                f"(format {metadata.get('format')}, expected {FORMAT})"
            )
        if _checksum(metadata["state"], arrays) != metadata["sha256"]:
            raise _Torn("its checksum does not fit")
        before, now = json.loads(metadata["configuration"]), json.loads(self._configuration)
        differences = different(before, now)
        if differences:
            raise ValueError(
                f"{path} is of another configuration ({', '.join(differences[:5])}): "
                "the run that goes on would be neither; start anew with resume=null"
            )
        ordered = [arrays[str(place)] for place in range(len(arrays))]
        return thaw(json.loads(metadata["state"]), ordered)


def different(there: Any, here: Any, key: str = "") -> list[str]:
    """Keys with different values, as ``key=there instead of here``."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = [*there, *(name for name in here if name not in there)]
        return [
            text
            for name in keys
            for text in different(there.get(name), here.get(name), f"{key}.{name}".strip("."))
        ]
    return [] if there == here else [f"{key}={there} instead of {here}"]


class _Torn(Exception):
    """A file that is not whole."""


def _checksum(text: str, arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(text.encode())
    for place in range(len(arrays)):
        digest.update(arrays[str(place)].tobytes())
    return digest.hexdigest()
