"""The nodes of a server and the clients of its run: ``python -m fl_app.field status server``."""

import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fl_app.core.events import Failed, Rejected
from fl_app.field.control import SuperLink, public_bytes
from fl_app.field.kit import Kit
from fl_app.record.history import History
from fl_app.record.log import read_events

COLUMNS = ("client", "last order", "since", "updates", "failures", "last failure")


def show(kit: Kit, output: Path | None) -> None:
    """Print which nodes are online, and a table of the run's clients.

    Args:
        kit: the server's folder.
        output: the run's folder; None = that of the unfinished run, else of the newest one.

    Raises:
        OSError: the SuperLink does not answer.
    """
    link = SuperLink(kit)
    named = {public_bytes(path): path.stem for path in (kit.folder / "keys").glob("*.pub")}
    nodes = [f"{named.get(key, '?')} {status}" for key, status in link.registered().items()]
    print(f"nodes: {', '.join(sorted(nodes)) or 'none'}")
    output = output or link.latest_output() or kit.folder / "run"
    Console().print(clients(output / "events.jsonl"))


def clients(log: Path) -> Table:
    """What each client of a run does, by the run's event log.

    Args:
        log: path of the event log.
    """
    history, reasons = History(), dict[int | None, str]()
    for event in read_events(log):
        history.emit(event)
        if isinstance(event, Failed | Rejected):
            reasons[event.client] = event.reason
    now = history.t
    with suppress(FileNotFoundError):  # the clock of a run that has events goes on
        now += max(time.time() - log.stat().st_mtime, 0.0)
    table = Table(title=escape(f"{log.parent}, version {history.version}"), title_justify="left")
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    last = {order.client: order for order in history.waiting.values()} | history.current
    for client in sorted(history.sequences):
        order = last.get(client)
        doing, since = "aggregated", ""
        if order is not None:
            doing = f"version {order.version}, {order.ended or 'under way'}"
            since = f"{now - (order.end or order.start):.0f} s"
        doing = "benched" if client in history.benched else doing
        numbers = (history.arrivals[client], history.lost[client])
        table.add_row(
            str(client), doing, since, *map(str, numbers), escape(reasons.get(client, ""))
        )
    return table
