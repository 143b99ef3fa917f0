"""Dirichlet partitions, by class and by client, also with classes of slow clients alone."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, Bound, bounded, one_of
from fl_app.core.slow import slow_clients
from fl_app.core.types import Indices, Rng
from fl_app.tasks.partition import Bounded, Iid, by_class, capped, split

MAX_TRIES = 100
POSITIVE = Bound("a number above 0", lambda value: value > 0)  # the infinite one is, too

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dirichlet(Bounded):
    """Label skew: a class's shares over the clients, or a client's mix of classes, are Dirichlet.

    ``mode="by_class"`` is that of NIID-Bench (Li et al. 2022, "Federated Learning on Non-IID Data
    Silos"). The shares of a class over the clients are Dir(alpha, ..., alpha). With `balance`, a
    client that holds its even share of the data gets nothing of the following classes. The whole
    draw is repeated until every client has `min_size` examples. NOTE: with many clients and little
    data the repetition would never end. So the best of 100 draws is taken, and single examples move
    from the largest clients to clients with too few.

    ``mode="by_client"`` is that of Hsu et al. (2019, "Measuring the Effects of Non-Identical Data
    Distribution"). Each client's mix of classes is Dir(alpha * their shares in the data). Sizes are
    equal up to one. A class without examples left leaves the mix.

    In both modes every example goes to one client, unless `max_size` leaves it out. An infinite
    `alpha` is `Iid`.

    Args:
        alpha: concentration > 0; the smaller, the fewer classes a client holds.
        min_size: least number of examples of a client, >= 1.
        balance: whether full clients get no more examples; False skews sizes as well.
        mode: ``"by_class"`` or ``"by_client"``; the latter does not use `balance`.
        max_size: most examples of a client, >= `min_size`, kept at random; None = no limit.

    Raises:
        ValueError: a value is out of its bounds, or there are too few examples for `min_size`.
    """

    alpha: float = bounded(0.3, POSITIVE, "shares could not be drawn")
    min_size: int = bounded(10, COUNT, "a client could not train")
    balance: bool = True
    mode: str = bounded("by_class", one_of("by_class", "by_client"), "there is no other")
    max_size: int | None = bounded(None, COUNT, "a client could not train")

    def __call__(self, labels: Indices, num_clients: int, rng: Rng) -> list[Indices]:
        cap = labels.size // num_clients
        bound = f"at most {cap} with {labels.size} training examples and num_clients={num_clients}"
        self._require(self.min_size <= cap, "min_size", bound, "there are not enough examples")
        if self.alpha == math.inf:
            return Iid(self.max_size)(labels, num_clients, rng)
        share = self._by_client if self.mode == "by_client" else self._by_class
        return capped(share(by_class(labels, rng), num_clients, rng), self.max_size, rng)

    def _by_client(self, classes: list[Indices], num_clients: int, rng: Rng) -> list[Indices]:
        left = np.array([c.size for c in classes])
        total = int(left.sum())
        prior = left / total
        sizes = np.full(num_clients, total // num_clients)
        sizes[: total % num_clients] += 1
        counts = np.zeros((num_clients, len(classes)), np.int64)
        for client_id, size in enumerate(sizes):
            mix = rng.dirichlet(self.alpha * prior)
            while (lacking := size - counts[client_id].sum()) > 0:
                mix = np.where(left > 0, mix, 0.0)
                if mix.sum() == 0.0:  # tiny alpha: all of the mix is in classes without examples
                    mix = left / left.sum()
                draw = np.minimum(rng.multinomial(lacking, mix / mix.sum()), left)
                counts[client_id] += draw
                left -= draw
        return split(classes, counts)

    def _by_class(self, classes: list[Indices], num_clients: int, rng: Rng) -> list[Indices]:
        class_sizes = [c.size for c in classes]
        counts, missing = self._counts(class_sizes, num_clients, rng)
        for _ in range(MAX_TRIES - 1):
            if missing == 0:
                break
            new_counts, new_missing = self._counts(class_sizes, num_clients, rng)
            if new_missing < missing:
                counts, missing = new_counts, new_missing
        parts = split(classes, counts)
        if missing:
            log.info(
                "Dirichlet(%g) left clients below min_size=%d in %d tries: %d of %d examples moved",
                *(self.alpha, self.min_size, MAX_TRIES, missing, sum(class_sizes)),
            )
            parts = _fill_up(parts, self.min_size, rng)
        return parts

    def _counts(self, class_sizes: list[int], num_clients: int, rng: Rng) -> tuple[Indices, int]:
        """Examples of each class for each client, and how many clients lack in total."""
        even = sum(class_sizes) / num_clients
        held = np.zeros(num_clients, np.int64)
        counts = np.zeros((num_clients, len(class_sizes)), np.int64)
        for label, size in enumerate(class_sizes):
            shares = rng.dirichlet(np.full(num_clients, self.alpha))
            if self.balance:
                shares[held >= even] = 0.0
                if shares.sum() == 0.0:  # tiny alpha: all of the class went to full clients
                    shares[held < even] = 1.0
                shares /= shares.sum()
            cuts = (np.cumsum(shares[:-1]) * size).astype(np.int64)
            counts[:, label] = np.diff(cuts, prepend=0, append=size)
            held += counts[:, label]
        return counts, int(np.maximum(self.min_size - held, 0).sum())


def _fill_up(parts: list[Indices], min_size: int, rng: Rng) -> list[Indices]:
    """Move random examples from the largest clients until every client has `min_size`."""
    owned = [rng.permutation(indices).tolist() for indices in parts]
    for own in owned:
        while len(own) < min_size:
            own.append(max(owned, key=len).pop())
    return [np.array(indices, np.int64) for indices in owned]


@dataclass(frozen=True)
class SlowLabels(Bounded):
    """Slow clients hold some classes, and no other client does.

    `fl_app.core.slow.slow_clients` names the slow clients. Without `others` they hold nothing else:
    they share their classes by `Dirichlet`, and the other clients share the other classes likewise.
    With `others` all clients share the other classes by `Dirichlet`, and the slow clients share
    their classes equally (FedHist, figure 5, the tenth class). Every example goes to one client.

    Args:
        slow_share: share of slow clients, in (0, 1).
        labels: classes of the slow clients, at least one, not all.
        alpha: concentration, see `Dirichlet`.
        min_size: least number of a client's examples, with `others` of the other classes, >= 1.
        balance: see `Dirichlet`.
        others: whether slow clients also hold other classes.

    Raises:
        ValueError: a value is out of its bounds, a class does not occur or is too small, or no
            client is left for the other classes.
    """

    slow_share: float = 0.2
    labels: Sequence[int] = (8, 9)
    alpha: float = 0.3
    min_size: int = 1
    balance: bool = False
    others: bool = False

    def __post_init__(self) -> None:
        slow_clients(1, self.slow_share)
        unique = isinstance(self.labels, Sequence) and len({*self.labels}) == len(self.labels) > 0
        self._require(unique, "labels", "a list of classes, each once", "none is slow")
        Dirichlet(self.alpha, self.min_size, self.balance)  # checks them

    def __call__(self, labels: Indices, num_clients: int, rng: Rng) -> list[Indices]:
        slow = slow_clients(num_clients, self.slow_share)
        known = set(np.unique(labels).tolist())
        bound = f"some but not all of the classes {sorted(known)}"
        reason = "slow or other clients would have no examples"
        self._require(known > set(self.labels), "labels", bound, reason)
        slow_ones = np.isin(labels, list(self.labels))
        slow_rows, others = np.flatnonzero(slow_ones), np.flatnonzero(~slow_ones)
        share = Dirichlet(self.alpha, self.min_size, self.balance)
        if self.others:
            slow_rows = rng.permutation(slow_rows)
            bound = f"classes of at least {len(slow)} examples, as many as slow clients"
            fits = slow_rows.size >= len(slow)
            self._require(fits, "labels", bound, "slow clients share them")
            parts = [others[place] for place in share(labels[others], num_clients, rng)]
            for client_id, piece in zip(slow, np.array_split(slow_rows, len(slow)), strict=True):
                parts[client_id] = np.concatenate([parts[client_id], piece])
            return parts
        bound = f"smaller: {len(slow)} of {num_clients} clients would be slow"
        reason = "the other classes would have no client"
        self._require(len(slow) < num_clients, "slow_share", bound, reason)
        parts = [others[place] for place in share(labels[others], num_clients - len(slow), rng)]
        # Slow ids come last.
        return parts + [slow_rows[place] for place in share(labels[slow_rows], len(slow), rng)]
