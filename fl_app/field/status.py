"""The nodes of a server and what they do, as a table: ``python -m fl_app.field status server``."""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from fl_app.core.errors import RunError, require_positive
from fl_app.core.events import Aggregated, Arrived, Benched, Dispatched, Event, Failed, Rejected
from fl_app.field.control import SuperLink, public_bytes
from fl_app.field.gate import NODES, key_name
from fl_app.field.kit import Kit
from fl_app.record.log import Log

COLUMNS = (
    *("node", "status", "client", "last order", "age", "updates", "failures"),
    *("Flower", "torch", "fl-app", "last failure"),
)
# Parts of the command lines of a server's processes, and what they are.
PROCESSES = {
    "flwr-serverapp": "serverapp",
    "fl_app.field.superlink": "superlink",
    "flower-superexec": "superexec",
}


@dataclass
class Client:
    """What the event log tells of a client.

    Attributes:
        last: its last order, in words.
        t: of the event that tells it, seconds on the run's clock.
        arrived: updates.
        failed: orders that failed or whose replies were refused.
        reason: of the last failure.
    """

    last: str = ""
    t: float = 0.0
    arrived: int = 0
    failed: int = 0
    reason: str = ""


class Clients:
    """Folds events into what is known of every client."""

    def __init__(self) -> None:
        self.by_id: dict[str, Client] = {}
        self.t = 0.0
        self.version = 0

    def add(self, event: Event) -> None:
        """Take in an event."""
        self.t = max(self.t, event.t)
        if isinstance(event, Aggregated):
            self.version = event.version
        if not isinstance(event, Dispatched | Arrived | Failed | Rejected | Benched):
            return
        client = self.by_id.setdefault(str(event.client), Client())
        client.t = event.t
        match event:
            case Dispatched():
                client.last = f"version {event.version}, under way"
            case Arrived():
                client.last = f"version {event.base_version}, arrived"
                client.arrived += 1
            case Failed() | Rejected():
                word = "failed" if isinstance(event, Failed) else "refused"
                client.last = f"version {event.base_version}, {word}"
                client.failed += 1
                client.reason = event.reason
            case Benched():
                client.last = "benched"


def rows(
    statuses: Mapping[str, tuple[str, str]],
    told: Mapping[str, Mapping[str, str]],
    clients: Clients,
    ahead: float,
) -> list[list[str]]:
    """The rows of the table, in the order of `COLUMNS`.

    Args:
        statuses: name of a node's key (`key_name`) -> name of the node, and status.
        told: name of a node's key -> what the node has told of itself.
        clients: of the run.
        ahead: seconds since the last event of the run.
    """
    found, shown = [], set()
    for key, (name, status) in statuses.items():
        about = told.get(key, {})
        number = about.get("client", "")
        shown.add(number)
        versions = [about.get(part, "?") for part in ("flower", "torch", "project")]
        found.append([name, status, number, *_of(clients, number, ahead), *versions])
    for number in clients.by_id.keys() - shown:  # nodes that have told nothing
        found.append(["?", "?", number, *_of(clients, number, ahead), "?", "?", "?"])
    return [[*row[:7], *row[8:], row[7]] for row in found]  # the reason is long: it comes last


def _of(clients: Clients, number: str, ahead: float) -> list[str]:
    client = clients.by_id.get(number)
    if client is None:
        return ["", "", "0", "0", ""]
    age = f"{max(clients.t - client.t, 0.0) + ahead:.0f} s"
    return [client.last, age, str(client.arrived), str(client.failed), client.reason]


def statuses(link: SuperLink) -> Counter[str]:
    """How many nodes have each status.

    Raises:
        OSError: the SuperLink does not answer, or refuses.
    """
    try:
        return Counter(link.registered().values())
    except RunError as error:
        raise ConnectionError(str(error)) from error


def memory(kit: Kit) -> dict[str, int]:
    """Resident bytes of the processes of a running server, by name."""
    home, found = str(kit.folder / "flower"), Counter[str]()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            name = next((n for part, n in PROCESSES.items() if any(part in w for w in words)), "")
            if name and process.environ().get("FLWR_HOME") == home:
                found[name] += process.memory_info().rss
    return dict(found)


def show(kit: Kit, output: Path | None, every: float | None) -> None:
    """Print the table, once or until Ctrl-C.

    Args:
        kit: the server's folder.
        output: the run's folder; None = that of the unfinished run, else of the newest one.
        every: seconds between two tables; None = only one.

    Raises:
        ValueError: `every` is not above 0.
        OSError: the SuperLink does not answer when it is asked for the first time.
    """
    if every is not None:
        require_positive("--watch", every, "the table would be made without end")
    view = _View(kit, output)
    table = view.table()
    if every is None:
        Console().print(table)
        return
    with Live(table, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            try:
                live.update(view.table(), refresh=True)
            except (OSError, RunError) as error:
                live.console.print(f"{time.strftime('%X')} {escape(str(error))}")


class _View:
    """Makes the table again and again, and reads of the run's log only what is new.

    Args:
        kit: as of `show`.
        chosen: `output` of `show`.
    """

    def __init__(self, kit: Kit, chosen: Path | None) -> None:
        self._kit, self._chosen = kit, chosen
        self._output: Path | None = None

    def table(self) -> Table:
        """The table as of now."""
        kit, link = self._kit, SuperLink(self._kit)
        registered = link.registered()
        output = self._chosen or link.latest_output() or kit.folder / "run"
        if output != self._output:
            self._output = output
            self._log, self._clients = Log(output / "events.jsonl"), Clients()
        for event in self._log.read():
            self._clients.add(event)
        named = {public_bytes(path): path.stem for path in (kit.folder / "keys").glob("*.pub")}
        by_key = {
            key_name(key): (named.get(key, key_name(key)), status)
            for key, status in registered.items()
        }
        ahead = 0.0
        with suppress(FileNotFoundError):
            ahead = max(time.time() - (output / "events.jsonl").stat().st_mtime, 0.0)
        named_nodes = dict(sorted(by_key.items(), key=_name))
        found = rows(named_nodes, _told(kit), self._clients, ahead)
        return _filled(found, f"{output}, version {self._clients.version}")


def _name(entry: tuple[str, tuple[str, str]]) -> str:
    return entry[1][0]


def _told(kit: Kit) -> Mapping[str, Mapping[str, str]]:
    """What the server's nodes have told of themselves."""
    try:
        found: Mapping[str, Mapping[str, str]] = json.loads((kit.folder / NODES).read_text())
    except (OSError, ValueError):
        return {}
    return found


def _filled(found: Sequence[Sequence[str]], title: str) -> Table:
    table = Table(title=escape(title), title_justify="left")
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for row in found:
        table.add_row(*map(escape, row))
    return table
