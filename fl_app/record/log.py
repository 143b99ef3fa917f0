"""Reads ``events.jsonl``: of a run that still goes on, damaged, or written by an older version."""

import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fl_app.core.events import Event, from_json

UNKNOWN = -1  # number of an order that a log does not tell
RENAMED = {"notice": "recall"}  # kinds of the first release


def read_events(path: Path, length: int | None = None) -> Iterator[Event]:
    """The events of a log in their order (`Log.read`)."""
    return Log(path).read(length)


class Log:
    """An event log, which may grow while it is read.

    Args:
        path: of the log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._orders = _Orders()

    def read(self, length: int | None = None) -> Iterator[Event]:
        """The events that follow those already read, in their order; none if there is no file.

        A last line without an end is not read yet: its run goes on, or was killed. Any other line
        that is not an event was damaged, such as by a failing disk. It is left out with a warning:
        one lost event must not cost all others.

        Args:
            length: bytes to read up to, from the start of the log; None = all.
        """
        if not self._path.is_file():
            return
        damaged = 0
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                end = self._position + len(line)
                if not line.endswith(b"\n") or (length is not None and end > length):
                    break
                self._position = end
                try:
                    event = from_json(self._orders.completed(json.loads(line)))
                except (ValueError, KeyError, TypeError):
                    damaged += 1
                else:
                    yield event
        if damaged:
            warnings.warn(
                f"{self._path}: damaged lines left out: {damaged}; counts may be too low",
                stacklevel=2,
            )


def events_of(objects: Iterable[dict[str, Any]]) -> Iterator[Event]:
    """The events that the JSON objects of a log stand for.

    Raises:
        ValueError: an object is no event.
    """
    orders = _Orders()
    for flat in objects:
        yield from_json(orders.completed(flat))


class _Orders:
    """Gives events the numbers of their orders where the log has none.

    Logs of the first release say which client and version an event concerns. A client has one order
    at a time, so its last order is meant. A rejected reply may answer an earlier one, which its
    version tells. An aggregated update is found by client and version.
    """

    def __init__(self) -> None:
        self._given = 0
        self._last: dict[int, int] = {}  # client -> number
        self._of_version: dict[tuple[int, int], int] = {}  # client, version given -> number
        # By client: base version and number of the updates in the buffer, oldest first.
        self._waiting: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def completed(self, flat: dict[str, Any]) -> dict[str, Any]:
        """The event with the number of its order or orders."""
        kind = RENAMED.get(flat["kind"], flat["kind"])
        if "order" in flat or kind in ("evaluate", "checkpoint"):
            return flat
        flat = {**flat, "kind": kind}
        client: Any = flat.get("client")
        match kind:
            case "dispatch":
                self._last[client] = self._of_version[client, flat["version"]] = self._given
                flat["order"] = self._given
                self._given += 1
            case "aggregate":
                base = [flat["version"] - 1 - age for age in flat["age"]]
                flat["order"] = [*map(self._leave, client, base)]
            case "cluster":
                flat["order"] = [self._leave(dropped, None) for dropped in flat["dropped"]]
            case "reject" if client is not None:
                last = self._last.get(client, UNKNOWN)
                flat["order"] = self._of_version.get((client, flat["base_version"]), last)
            case _ if client is not None:
                flat["order"] = self._last.get(client, UNKNOWN)
                if kind == "arrival":
                    self._waiting[client].append((flat["base_version"], flat["order"]))
        return flat

    def _leave(self, client: int, base_version: int | None) -> int:
        """The client's oldest update from this version, which leaves the buffer."""
        waiting = self._waiting[client]
        for place, (version, _) in enumerate(waiting):
            if base_version in (version, None):
                return waiting.pop(place)[1]
        return UNKNOWN
