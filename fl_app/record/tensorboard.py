"""Shows a run in TensorBoard while it goes on (``tensorboard --logdir <run folder>``)."""

import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from fl_app.core.errors import is_number
from fl_app.core.events import Aggregated, Arrived, ClientsEvaluated, Evaluated, Event
from fl_app.core.extras import told_if_missing
from fl_app.record.history import History

Clients = tuple[Collection[int], Collection[int]]


class TensorBoard:
    """Sink that writes TensorBoard's event files: steps are versions, times those of the run.

    There is a point for every version and every evaluation. Tags:

    - ``test/...``: metrics of the evaluations;
    - ``on_clients/...``: mean, standard deviation and worst decile of the evaluations on clients;
    - ``clients/loss``, ``clients/staleness``: means over the updates since the last version, and of
      the version;
    - ``clients/online``, ``clients/in_flight``: numbers of clients;
    - ``total/...``: arrivals, failures, rejects, and what `more` gives, such as bytes;
    - ``strategy/...``: numbers that the strategy reports of the version, or the mean of a list.

    Args:
        folder: for the files.
        history: of the run; takes in every event before this sink does.
        clients: gives the clients that are idle, and those that work on an order.
        more: gives further totals by name.
    """

    def __init__(
        self,
        folder: Path,
        history: History,
        clients: Callable[[], Clients],
        more: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._folder = folder
        self._history = history
        self._clients = clients
        self._more = more
        self._began = time.time() - history.t
        self._losses: list[float | None] = []  # of updates since the last version

    @cached_property
    def writer(self) -> Any:
        """TensorBoard's; it starts a thread, so it is made at the first event: workers fork."""
        with told_if_missing():
            from torch.utils.tensorboard import SummaryWriter  # takes half a second to import

        return SummaryWriter(str(self._folder), flush_secs=2)

    def emit(self, event: Event) -> None:
        """Write a point if the event makes or measures a version."""
        match event:
            case Arrived():
                self._losses.append(event.loss)
            case Evaluated():
                self._write("test", event.metrics, event.version)
            case ClientsEvaluated():
                self._write("on_clients", event.metrics, event.version)
            case Aggregated():
                self._write("strategy", event.report, event.version)
                self._write("total", self._totals(), event.version)
                self._write("clients", self._of_clients(event), event.version)

    def close(self) -> None:
        """Write what is left."""
        if "writer" in vars(self):
            self.writer.close()

    def _totals(self) -> dict[str, float]:
        history = self._history
        totals = {
            "arrivals": history.client_updates,
            "failures": history.failures,
            "rejects": history.rejected,
        }
        return {**totals, **self._more()}

    def _of_clients(self, event: Aggregated) -> dict[str, Any]:
        losses, self._losses = self._losses, []
        idle, busy = self._clients()
        return {
            "loss": losses,
            "staleness": list(event.age),
            "online": len(idle) + len(busy),
            "in_flight": len(busy),
        }

    def _write(self, group: str, values: Mapping[str, Any], version: int) -> None:
        for name, value in values.items():
            numbers = [*filter(is_number, value if isinstance(value, list) else [value])]
            if numbers:
                when = self._began + self._history.t
                self.writer.add_scalar(f"{group}/{name}", fmean(numbers), version, when)
