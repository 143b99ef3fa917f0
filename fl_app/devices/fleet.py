"""The cost of an order: seconds and joules; when clients are online; the server's seconds."""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from fl_app.core.errors import explaining, require
from fl_app.core.hyper import NON_NEGATIVE, POSITIVE, UNIT_INTERVAL, Checked, bounded, or_none
from fl_app.core.types import Parts
from fl_app.devices.compute import Times
from fl_app.devices.draws import exponential, uniform
from fl_app.devices.network import Links, Queue
from fl_app.devices.table import SERVER, read_table
from fl_app.engine.server import Server


@dataclass(frozen=True)
class Energy(Checked):
    """The power that a device draws beyond its idle power.

    Args:
        compute_watts: while it trains, >= 0.
        radio_watts: while it sends or receives, >= 0.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "devices.energy"

    compute_watts: float = bounded(3.0, NON_NEGATIVE, "training would charge the battery")
    radio_watts: float = bounded(1.0, NON_NEGATIVE, "training would charge the battery")

    def joules(
        self, parts: Sequence[float], beside: bool | None = False, elapsed: float = math.inf
    ) -> float:
        """Energy of the first `elapsed` seconds of an order.

        Args:
            parts: seconds of its download, training and upload.
            beside: whether it trains beside its transfers, at a steady pace, rather than between.
            elapsed: seconds since it was given; fewer than the whole order's if it was cut short.
        """
        download, training, upload = parts
        if beside:
            seconds = max(training, download + upload)
            return min(elapsed / seconds, 1.0) * self.joules(parts)
        download = min(elapsed, download)
        training = min(elapsed - download, training)
        upload = min(elapsed - download - training, upload)
        return training * self.compute_watts + (download + upload) * self.radio_watts


@dataclass(eq=False)
class Fleet:
    """The devices of all clients: the engine's `Devices`.

    An order takes download + training + upload. Each is a function of (seed, client, sequence
    number).

    Args:
        compute: training times.
        network: transfer times; None = transfers take no time.
        energy: power of the devices; None = unknown.

    Attributes:
        entries: of every client, the share of the model's entries that it trains, which scales
            training and transfers; None = all of them.
        joules: energy of an order (`Energy.joules`); None = unknown.
    """

    compute: Times
    network: Links | None = None
    energy: Energy | None = None
    entries: Sequence[float] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        energy = self.energy
        if energy is not None and isinstance(self.network, Queue):
            energy = replace(energy, radio_watts=0.0)  # it waits, with its radio off
        self.joules = None if energy is None else energy.joules

    def parts(self, client_id: int, sequence: int, now: float) -> Parts:
        """Seconds of the client's order with sequence number `sequence` given at `now`."""
        part = 1.0 if self.entries is None else self.entries[client_id]
        training = part * self.compute.seconds(client_id, sequence, now)
        start = float(self.compute.start_up(client_id, sequence))
        about, links, down, up = (client_id, sequence, part), self.network, 0.0, 0.0
        if links is not None:
            down, up = links.download(*about), links.upload(*about)
        # Classes of a user's own may give numbers of NumPy, which no log takes.
        seconds = down, training, up = float(down), float(start + training), float(up)
        fits = down >= 0 and training >= 0 and up >= 0
        require(fits, "devices", seconds, "seconds >= 0", "time would run backwards")
        return Parts(*seconds, metered=self.joules is not None, start=start)


class Overlapping:
    """A fleet whose clients train during their upload and their next download.

    All clients work in step. A cycle has as many local epochs as the slowest client needs to cover
    its transfers, at least one and at most `max_epochs`. It lasts as long as its training or its
    transfers, whichever takes longer.

    Args:
        fleet: the devices; their training time is the time of `max_epochs` local epochs.
        num_clients: N.
        max_epochs: E_max >= 1.

    Attributes:
        local_epochs: number of local epochs in a cycle.
        joules: of `fleet`.
    """

    def __init__(self, fleet: Fleet, num_clients: int, max_epochs: int) -> None:
        self._fleet, self.joules = fleet, fleet.joules
        parts = [fleet.parts(client_id, 0, 0.0) for client_id in range(num_clients)]
        epoch = max(each.training - each.start for each in parts) / max_epochs
        transfers = max(each.download + each.upload for each in parts)
        self.local_epochs = min(max(math.ceil(transfers / epoch - 1e-9), 1), max_epochs)
        self._share = self.local_epochs / max_epochs

    def parts(self, client_id: int, sequence: int, now: float) -> Parts:
        """The seconds of a cycle, all of them as training: transfers overlap with it.

        A client's first cycle does not overlap: its training needs the download.
        """
        parts = self._fleet.parts(client_id, sequence, now)
        training = (parts.training - parts.start) * self._share + parts.start
        download, training, upload = work = (parts[0], training, parts[2])
        seconds = max(training, download + upload)
        if sequence == 0:
            seconds = download + training + upload
        return Parts(0.0, seconds, 0.0, work, parts.metered)


@dataclass(kw_only=True, eq=False)
class Churn(Checked):
    """Clients come and go at random, in independent stays of exponential length.

    At second 0 a client is online with its long-run probability.

    Args:
        mean_online: mean seconds of a stay online, > 0.
        mean_offline: mean seconds of a stay offline, > 0.
        seed: seed of the run.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "devices.availability"

    mean_online: float = bounded(60.0, POSITIVE, "no client would ever be online")
    mean_offline: float = bounded(30.0, POSITIVE, "leave devices.availability out")
    seed: int = 0

    def starts_online(self, client_id: int) -> bool:
        """Whether the client is online at second 0."""
        return uniform(self.seed, client_id, 0, b"online") < self.mean_online / (
            self.mean_online + self.mean_offline
        )

    def stay(self, client_id: int, number: int) -> float:
        """Seconds of the client's stay `number` >= 0; online and offline stays alternate."""
        online = self.starts_online(client_id) == (number % 2 == 0)
        mean = self.mean_online if online else self.mean_offline
        return mean * exponential(uniform(self.seed, client_id, number, b"stay"))


@dataclass(kw_only=True, eq=False)
class Arrivals(Checked):
    """Clients join late, and leave for good.

    Args:
        late: share of the clients that join after second 0, in [0, 1].
        spread: they join at a second uniform in (0, spread], > 0.
        mean_stay: mean seconds from joining to leaving, exponential, > 0; None = nobody leaves.
        seed: seed of the run.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "devices.availability"

    late: float = bounded(0.5, UNIT_INTERVAL, "it is a share of the clients")
    spread: float = bounded(60.0, POSITIVE, "with late=0 no client joins late")
    mean_stay: float | None = bounded(60.0, or_none(POSITIVE), "no client would stay")
    seed: int = 0

    def starts_online(self, client_id: int) -> bool:
        """Whether the client is online at second 0."""
        return uniform(self.seed, client_id, 0, b"late") >= self.late

    def stay(self, client_id: int, number: int) -> float:
        """Seconds until the client joins, then those until it leaves; then inf."""
        phase = number + self.starts_online(client_id)
        if phase == 0:
            return self.spread * (1.0 - uniform(self.seed, client_id, 0, b"joins"))
        if phase > 1 or self.mean_stay is None:
            return math.inf
        return self.mean_stay * exponential(uniform(self.seed, client_id, 0, b"leaves"))


# Messages of FLASH's phones, which are ready when all of `READY` hold; each of `ENDS` ends one.
READY = {"battery_charged_on", "wifi", "screen_lock"}
ENDS = {"battery_charged_off": "battery_charged_on", "screen_unlock": "screen_lock"}
ENDS |= dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), "wifi")
STATES = dict.fromkeys((*sorted(READY), "screen_on", "screen_off"), "") | ENDS
SECOND_0 = datetime(2020, 1, 2)  # of FLASH


@dataclass(kw_only=True, eq=False)
class Traces:
    """Clients are online when recorded phones were ready to train.

    The file is a JSON of users by name: FLASH's ``state_traces.json`` (``messages``, each a time
    and a state), or ``cached_timers.json`` of FLASH and FLHetBench (``trace_start``, ``trace_end``,
    ``ready_time``, in seconds). The seed assigns the users to the clients, again from the first if
    they are fewer. Users that were never ready are left out. As in FLASH's ``Timer``, a trace
    repeats: at second t a user does what it did at start + (t - start) mod (end - start). A stay
    without a recorded end does not count.

    Args:
        path: of the file; required.
        seed: seed of the run.

    Raises:
        ValueError: there is no such file, or a user in it is refused.
    """

    path: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        key, path = "devices.availability.path", Path(self.path or "").expanduser()
        consequence = "when clients are online is unknown"
        require(path.is_file(), key, self.path, "a JSON file of recorded users", consequence)
        users = list[tuple[bool, float, list[float]]]()
        with explaining(f"{key}={path}"):
            for name, user in json.loads(path.read_text(encoding="utf-8")).items():
                with explaining(f"user {name}"):
                    users += _stays(user)
        require(len(users) > 0, key, path, "a file with a user that was ready", consequence)
        order = sorted(range(len(users)), key=lambda user: uniform(self.seed, user, 0, b"user"))
        self._users = [users[user] for user in order]

    def starts_online(self, client_id: int) -> bool:
        """Whether the client is online at second 0."""
        return self._users[client_id % len(self._users)][0]

    def stay(self, client_id: int, number: int) -> float:
        """Seconds of the client's stay `number` >= 0; online and offline stays alternate."""
        _, first, circle = self._users[client_id % len(self._users)]
        return circle[number % len(circle)] if number else first


def _stays(user: Mapping[str, Any]) -> Iterator[tuple[bool, float, list[float]]]:
    """Whether a user is ready at second 0, until when, and its stays in a circle; or nothing."""
    if "messages" in user:
        times = _ready_times(user["messages"])
    else:
        times = [user["trace_start"], *chain.from_iterable(user["ready_time"]), user["trace_end"]]
    if len(times) <= 2:  # never ready
        return
    start, *changes, end = times
    wrong = [pair for pair in pairwise(times) if not pair[0] <= pair[1]]
    holds = start < end and len(changes) % 2 == 0 and not wrong
    bound = "pairs of ascending seconds, from trace_start to a later trace_end"
    require(holds, "ready_time", wrong or (start, end), bound, "it says when the user was ready")
    length = end - start
    online = bisect_right(changes, start + -start % length) % 2 == 1
    turns = set[float]()
    for change in changes:  # two at the same time cancel, also where the trace ends and restarts
        turns ^= {change % length or length}
    if ends := sorted(turns) or [math.inf] * online:
        yield online, ends[0], [b - a for a, b in pairwise([ends[-1] - length, *ends])]


def _ready_times(messages: str) -> list[float]:
    """A user's first second, those in which it turns ready and unready in turn, and its last."""
    seconds, changes, now = list[float](), list[float](), set[str]()
    bound = f"a time, none before the last, a tab and a percentage or one of {', '.join(STATES)}"
    for number, line in enumerate(filter(str.strip, messages.split("\n")), 1):
        time, _, state = map(str.strip, line.lower().partition("\t"))
        try:
            second = (datetime.fromisoformat(time) - SECOND_0).total_seconds()
        except ValueError:
            second = math.nan  # it fits nowhere
        fits = second >= (seconds or [second])[-1] and (state in STATES or state[-1:] == "%")
        require(fits, f"message {number}", line, bound, "it says whether the user is ready")
        seconds.append(second)
        now = (now | {state} & READY) - {STATES.get(state)}
        if (now == READY) != len(changes) % 2:
            changes.append(second)
    return seconds[:1] + changes[: len(changes) // 2 * 2] + seconds[-1:]


class MeasuredServer(Server):
    """A server with the seconds of a device file; arguments replace the file's values.

    Args:
        table: a device file, as of `fl_app.devices.compute.Boards`;
            None = arguments left out take no time.
        dispatch: see `Server`.
        receipt: see `Server`.
        aggregation: see `Server`.
        evaluation: see `Server`.
        poll: see `Server`.

    Raises:
        ValueError: there is no such table, or a value is out of its bounds.
    """

    def __init__(
        self,
        *,
        table: str | None = None,
        dispatch: float | None = None,
        receipt: float | None = None,
        aggregation: float | None = None,
        evaluation: float | None = None,
        poll: float | None = None,
    ) -> None:
        values = (dispatch, receipt, aggregation, evaluation, poll)
        settings = {} if table is None else dict(read_table(table, "devices.server.table").server)
        arguments = {key: v for key, v in zip(SERVER, values, strict=True) if v is not None}
        super().__init__(**settings | arguments)
