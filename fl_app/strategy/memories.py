"""The last gradient of every client, which a server keeps as a row of one array."""

import math
import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fl_app.core.errors import require
from fl_app.core.hyper import COUNT, bounded, one_of
from fl_app.core.types import Array, Numbers, Update, Vector
from fl_app.core.vector import blocks
from fl_app.schedule import Schedule, k_async
from fl_app.strategy.weighted import Stepped

RESERVED_ROWS = 8  # if the number of clients is unknown
BATCH = 64  # greatest number of gradients that are added at once, or wait to be removed
SMALLEST = 1e-15  # factor of a sum since its weights were scaled; a weight below it is 0
REBUILT = 4096  # versions after which sums are built anew, without the rounding of the removals
BLOCK = 1 << 16  # entries of gradients that are added at a time, so that they stay in the cache


class Memories:
    """The last gradient of every client, one row of an array of shape ``(slots, d)`` each.

    A row stays as it is until the sums are without it, so a client's next gradient gets another.

    With ``"float16"`` a row is divided by a power of two, its scale, before it is rounded, so that
    a small gradient does not vanish. Sums are those of the rounded rows, one for each of the
    exponentials that add up to (1 + age)^(-p): for p = 0 one, in float64, else 10 to 25, in
    float32. A version scales all weights of a sum by one factor, so its cost does not depend on the
    number of clients.

    Args:
        dtype: of a row's entries, ``"float32"`` or ``"float16"``.
        reserve: rows of the first array; more are added when they are needed.
        exponent: p of `weighted`, in [0, 2].

    Attributes:
        versions: client -> version that its gradient was computed on.
        oldest: gradients computed on earlier versions no longer count (`counts`).
    """

    def __init__(
        self, dtype: str = "float32", reserve: int | None = None, exponent: float = 0.0
    ) -> None:
        self.versions: dict[int, int] = {}
        self.oldest = 0
        self._dtype = dtype
        reserve = reserve or RESERVED_ROWS
        self._spare = min(BATCH, RESERVED_ROWS + reserve // 2)  # rows that may wait to be removed
        self._reserve = reserve + self._spare
        self._exponent = exponent
        self._slots: dict[int, int] = {}  # of clients whose gradients count
        self._free: list[int] = []  # slots that were used
        self._rows: Array = np.empty((0, 0), self._dtype)
        self._scales: dict[int, float] = {}  # of the slots
        self._counted: dict[int, dict[int, bool]] = {}  # version -> these clients
        self._entered: dict[int, bool] = {}  # of these, those whose rows are in no sum yet
        self._left: list[tuple[int, int]] = []  # version and slot of others that are in sums
        self._span, self._at = -1.0, 0  # greatest age that the sums are made for, their version
        self._built = 0  # version at which they were built from the rows
        self._rates = self._shares = self._masses = np.zeros(0)
        self._sums: Numbers = np.zeros((0, 0))

    def __len__(self) -> int:
        return len(self.versions)

    def __contains__(self, client_id: int) -> bool:
        return client_id in self.versions

    def row(self, client_id: int) -> Vector:
        """A client's gradient as it is stored, shape ``(d,)``; KeyError if none counts."""
        slot = self._slots[client_id]
        row: Vector = self._rows[slot].astype(np.float32, copy=False)
        return row if self._dtype == "float32" else row * self._scales[slot]

    def counts(self, client_id: int) -> bool:
        """Whether the client has a gradient, and that was not forgotten (`forget_before`)."""
        return client_id in self._slots

    def forget_before(self, version: float) -> None:
        """Remove gradients that were computed before `version`, for good."""
        if version > self.oldest:
            before, self.oldest = self.oldest, math.ceil(version)
            for old in range(before, self.oldest):
                for client_id in list(self._counted.get(old, ())):
                    self._leave(client_id)

    def weighted(self, now: int) -> tuple[Numbers, float]:
        """Weighted sum of the gradients that count, and the sum of their weights.

        Args:
            now: the version at which ages are measured; never below that of an earlier call.

        Returns:
            sum_c weight_c h_c, shape ``(d,)``, and sum_c weight_c; zeros if there is none. Weights
            are (1 + now - version)^(-p), within 1e-6 of themselves for ages up to 10,000.
        """
        span = now - self.oldest
        if span > self._span or (self._exponent and now - self._built >= REBUILT):
            self._built, self._span = now, 2 * max(span, 32) if self._exponent else math.inf
            self._rates, self._shares = exponentials(self._exponent, self._span)
            self._masses = np.zeros(self._rates.size)
            dtype = np.float32 if self._exponent else np.float64
            self._sums = np.zeros((self._rates.size, self._rows.shape[1]), dtype)
            self._free += [slot for _, slot in self._left]
            self._left, counted = [], [*self._slots]
            for start in range(0, len(counted), BATCH):
                self._entered = dict.fromkeys(counted[start : start + BATCH], True)
                self._settle(now)
        return self._settle(now)

    def put(self, client_id: int, gradient: Vector, version: int) -> None:
        """Remember a client's gradient ``(d,)``, computed on `version`, in place of its last."""
        self._leave(client_id)
        self.versions[client_id] = version
        if version < self.oldest:
            return
        slot = self._slots[client_id] = self._free.pop() if self._free else self._add(gradient.size)
        scale = 1.0 if self._dtype == "float32" else _power_of_two(gradient)
        self._scales[slot] = scale
        np.divide(gradient, scale, out=self._rows[slot], casting="same_kind")
        self._counted.setdefault(version, {})[client_id] = True
        self._entered[client_id] = True

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        used = len(self._slots) + len(self._left) + len(self._free)
        return {**vars(self), "_rows": self._rows[:used]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore everything.

        Raises:
            ValueError: the rows have another type than this object's.
        """
        dtype = state["_dtype"]
        key, reason = "algorithm.strategy.memory_dtype", "memories would be rounded anew"
        require(dtype == self._dtype, key, self._dtype, f"{dtype}, as in the checkpoint", reason)
        vars(self).update(deepcopy(dict(state)))

    def _add(self, size: int) -> int:
        """A slot that was not used before."""
        slot = len(self._slots) + len(self._left)
        if slot >= len(self._rows):
            # Reserved memory that nobody has written to takes no room yet.
            rows = np.zeros((max(self._reserve, 2 * slot), size), self._dtype)
            rows[:slot] = self._rows[:slot].reshape(slot, size)
            self._rows = rows
        return slot

    def _leave(self, client_id: int) -> None:
        """Remove a client's gradient, if it has one that counts."""
        slot = self._slots.pop(client_id, None)
        if slot is None:
            return
        clients = self._counted[version := self.versions[client_id]]
        del clients[client_id]
        if not clients:
            del self._counted[version]
        if self._entered.pop(client_id, False):
            self._free.append(slot)
            return
        self._left.append((version, slot))
        if len(self._left) >= self._spare:
            self._settle(self._at)

    def _settle(self, now: int) -> tuple[Numbers, float]:
        """Bring the sums up to date, as of `now`, and weigh them; shape ``(d,)``."""
        left = [slot for _, slot in self._left]
        slots = left + [self._slots[client_id] for client_id in self._entered]
        scales = np.array([self._scales[slot] for slot in slots])
        scales[: len(left)] *= -1
        versions = [v for v, _ in self._left] + [self.versions[c] for c in self._entered]
        now = max([now, *versions])
        if (falls := np.exp(-self._rates * (now - self._at))).min() < SMALLEST:
            self._sums *= falls[:, None].astype(self._sums.dtype)
            self._masses *= falls
            self._at, falls = now, np.ones_like(falls)
        weights = np.exp(np.outer(self._rates, np.array(versions) - self._at))
        self._masses += weights @ np.sign(scales)
        weights[weights < SMALLEST] = 0  # in float32 some would be denormal, which is slow
        weights = (weights * scales).astype(self._sums.dtype)
        falls *= self._shares
        factors, total = falls.astype(self._sums.dtype), np.empty(self._sums.shape[1])
        for place in blocks(total.size, max(64, BLOCK // (len(slots) + 1))):
            sums = self._sums[:, place]
            sums += weights @ self._rows[slots, place].astype(sums.dtype, copy=False)
            total[place] = factors @ sums
        self._free += left
        self._entered, self._left = {}, []
        return total, float(falls @ self._masses)


def exponentials(exponent: float, span: float) -> tuple[Numbers, Numbers]:
    """Rates l_j and shares c_j with sum_j c_j e^(-l_j a) = (1 + a)^(-exponent), a = 0 .. `span`.

    A power of the age is a mean of exponentials whose rates have a power as density. So rates are
    geometric where they are large, and equally spaced where the span cannot tell them apart; shares
    are fitted (least squares of the relative error).

    Returns:
        Two arrays of the same length, 1 for `exponent` 0, else 3 + 3 `exponent` + 1.6 ln(span).
    """
    if exponent == 0:
        return np.zeros(1), np.ones(1)
    places = np.arange(round(3 + 3 * exponent + 1.6 * math.log(span))) + 0.4 * exponent
    slow, fast = 0.5 / span, 3.5 + exponent
    rates = slow * np.expm1(places / places[-1] * math.log1p(fast / slow))
    ages = np.unique(np.geomspace(1, span + 1, 400).round()) - 1
    powers = np.exp(-np.outer(ages, rates)) * (1 + ages[:, None]) ** exponent
    return rates, np.linalg.lstsq(powers, np.ones(ages.size))[0].astype(np.float64)


def _power_of_two(gradient: Vector) -> float:
    """A power of two by which a gradient's largest entry becomes one in [1, 2); 1 of zeros."""
    largest = float(np.abs(gradient).max(initial=0.0))
    return math.ldexp(1, math.frexp(largest)[1] - 1) if largest else 1.0


@dataclass(kw_only=True)
class RemembersClients(Stepped):
    """A server that keeps the last gradient of each of N clients: N d numbers.

    A gradient is the trainable part of an upload as a descent direction, after the clip.

    Args:
        num_clients: N; None = the clients whose uploads were aggregated so far.
        memory_dtype: type of the numbers, ``"float32"`` or ``"float16"``.
    """

    schedule: ClassVar[Schedule] = k_async(10)
    looks_at: ClassVar[str] = "the last gradient of every client"

    num_clients: int | None = bounded(None, COUNT, "there would be no client to train")
    memory_dtype: str = bounded(
        "float32", one_of("float32", "float16"), "gradients are kept in no other type"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.state["memory"] = Memories(self.memory_dtype, self.num_clients, self.memory_weight)

    @property
    def memory_weight(self) -> float:
        """p: memories are weighted by their ages, as (1 + age)^(-p)."""
        return 0.0

    @property
    def memory(self) -> Memories:
        """The stored gradients."""
        return self.state["memory"]

    def population(self, updates: Iterable[Update]) -> int:
        """N: `num_clients`, or the number of clients heard, these included, if that is larger."""
        new = {update.client_id for update in updates if update.client_id not in self.memory}
        return max(self.num_clients or 0, len(self.memory) + len(new))

    def remember(self, updates: Iterable[Update], gradients: Iterable[Vector], size: int) -> None:
        """Store gradients; of two gradients of one client, the later one.

        Args:
            updates: K updates.
            gradients: theirs, shape ``(d,)``.
            size: number of trainable entries.
        """
        for update, gradient in zip(updates, gradients, strict=True):
            self.memory.put(update.client_id, gradient[:size], update.base_version)

    def memory_cost(self, size: int, num_clients: int) -> str:
        name, num_clients = type(self).__name__, max(num_clients, self.num_clients or 0)
        row = size * np.dtype(self.memory_dtype).itemsize
        if not num_clients:
            return f"{name} keeps {row / 1e6:,.1f} MB of each client's gradient, and sums of these"
        lower = num_clients * row + 8 * size
        upper = lower + 4 * size * (25 if self.memory_weight else 0)  # a sum for each rate
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._require(
            lower <= available,
            "memory_dtype",
            f"a type with which {num_clients} clients' gradients of {size} numbers fit into the "
            f"{available} bytes of this machine's memory",
            f"{name} keeps at least {lower} bytes; take float16, fewer clients or a smaller model",
        )
        return f"{name} keeps up to {upper / 1e6:,.1f} MB of {num_clients} clients' gradients"

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"state": {**self.state, "memory": self.memory.state_dict()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        memory = self.memory
        super().load_state_dict(state)
        memory.load_state_dict(self.state["memory"])
        self.state["memory"] = memory
