"""Reads ``events.jsonl``, also of a run that still goes on, and as earlier versions wrote it."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fl_app.core.events import Event, from_json

RENAMED = {"notice": "recall"}  # kinds


def read_events(path: Path, length: int | None = None) -> Iterator[Event]:
    """The events of a run in their order; none if there is no file.

    A last line without an end is left out: its run goes on, or was killed.

    Args:
        path: of the log.
        length: bytes to read; None = all.

    Raises:
        ValueError: a line is no event.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        lines = file.read(-1 if length is None else length).splitlines(keepends=True)
    yield from events_of(json.loads(line) for line in lines if line.endswith(b"\n"))


def events_of(objects: Iterable[dict[str, Any]]) -> Iterator[Event]:
    """The events that the objects of a log stand for.

    Raises:
        ValueError: an object is no event.
    """
    orders = _Orders()
    for flat in objects:
        yield from_json(orders.completed(flat))


class _Orders:
    """Gives events the numbers of their orders where the log has none.

    Logs of the first release say which client and version an event concerns. A client has one order
    at a time, so its last one is meant, and an aggregated update is told by client and version.
    """

    def __init__(self) -> None:
        self._given = 0
        self._last: dict[int, int] = {}  # client -> number
        # By client: base version and number of what waits in the buffer, oldest first.
        self._waiting: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def completed(self, flat: dict[str, Any]) -> dict[str, Any]:
        """The event with the number of its order or orders."""
        kind = RENAMED.get(flat["kind"], flat["kind"])
        if "order" in flat or kind in ("evaluate", "checkpoint"):
            return flat
        flat = {**flat, "kind": kind}
        match kind:
            case "dispatch":
                flat["order"] = self._last[flat["client"]] = self._given
                self._given += 1
            case "aggregate":
                base = [flat["version"] - 1 - age for age in flat["age"]]
                flat["order"] = [*map(self._leave, flat["client"], base)]
            case "cluster":
                flat["order"] = [self._leave(client, None) for client in flat["dropped"]]
            case _ if "client" in flat:
                flat["order"] = self._last.get(flat["client"], -1)
                if kind == "arrival":
                    self._waiting[flat["client"]].append((flat["base_version"], flat["order"]))
        return flat

    def _leave(self, client: int, base_version: int | None) -> int:
        """The client's oldest update from this version, which leaves the buffer."""
        waiting = self._waiting[client]
        for place, (version, _) in enumerate(waiting):
            if base_version in (version, None):
                return waiting.pop(place)[1]
        raise ValueError(
            f"an update of client {client} from version {base_version} left the buffer, and none "
            "had arrived"
        )
