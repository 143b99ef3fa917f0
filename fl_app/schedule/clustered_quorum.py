"""A schedule for clustered clients: it waits for the fastest clients of each cluster."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fl_app.core.hyper import COUNT, SHARE, bounded
from fl_app.core.pool import ClientPool
from fl_app.core.types import Rng, Update, Updates
from fl_app.schedule.base import Attentive, Ids, not_waiting


@dataclass
class ClusteredQuorum(Attentive):
    """EAFL's schedule: all clients work; the server aggregates each cluster's first updates.

    A cluster X_n has a quorum of max(1, round(phi |X_n|)) updates. An update beyond the quorum
    waits for the next aggregation. A client starts again when its update has been aggregated.

    The first updates of all clients only serve to form clusters. They are dropped, and all clients
    train again. Later clusters are formed from the latest uploads and cost no time.

    The server does not wait for a client that is offline or whose last order failed.

    Attributes:
        num_clusters: N >= 1; the first clusters are formed from at least N clients.
        participation: phi in (0, 1].
        recluster_every: R >= 1 iterations between two clusterings.
        synchronous: True = the server waits for the quorums of all clusters and aggregates them
            together, which is one iteration. False = it aggregates each cluster on its own; as
            many aggregations as there are clusters are then one iteration.
        recluster: False = the first clusters are kept.

    Raises:
        ValueError: a bound is violated.
    """

    num_clusters: int = bounded(5, COUNT, "clients belong to a cluster")
    participation: float = bounded(0.1, SHARE, "it is the share of a cluster that is waited for")
    recluster_every: int = bounded(100, COUNT, "clusters would be formed for ever")
    synchronous: bool = True
    recluster: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._clusters: Mapping[int, int] | None = None
        self._due = 0  # version at which clusters are formed next
        self._expected: set[int] = set()  # clients that the server waits for
        self._counted: set[int] = set()  # clients for which `_quorums` was computed
        self._quorums: dict[int, int] = {}  # cluster -> updates to wait for

    @property
    def min_clients(self) -> int:
        return self.num_clusters

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        """Start the idle clients without an update in the buffer."""
        self._expected = {*idle, *busy, *self._evaluating}.difference(self._failing)
        return not_waiting(idle, buffer)

    def survey(self, version: int, buffer: Updates) -> bool:
        if self._clusters is None:
            reported = {update.client_id for update in buffer}
            return len(reported) >= self.num_clusters and reported >= self._expected
        return self.recluster and version >= self._due

    @property
    def surveys(self) -> bool:
        return self._clusters is None or self.recluster

    def regroup(self, clusters: Mapping[int, int], buffer: Updates) -> Updates:
        first = self._clusters is None
        self._clusters = dict(clusters)
        self._counted = set()
        versions = 1 if self.synchronous else 1 + max(clusters.values(), default=0)
        self._due += versions * self.recluster_every
        return buffer if first else ()

    def take(self, buffer: Updates) -> Updates:
        """The quorums of all clusters if `synchronous`, otherwise the quorum of one cluster."""
        if self._clusters is None or not buffer:
            return ()
        arrived: dict[int, list[Update]] = defaultdict(list)
        for update in buffer:
            arrived[self._cluster_of(update.client_id)].append(update)
        # A client that left while its update waits still belongs to its cluster.
        quorums = self._quorums_of(self._expected.union(update.client_id for update in buffer))
        complete = sorted(n for n, quorum in quorums.items() if len(arrived[n]) >= quorum)
        if self.synchronous and len(complete) < len(quorums):
            return ()
        chosen = complete if self.synchronous else complete[:1]
        first = {id(update) for n in chosen for update in arrived[n][: quorums[n]]}
        return [update for update in buffer if id(update) in first]

    def _quorums_of(self, clients: set[int]) -> Mapping[int, int]:
        """Each cluster's quorum; computed again only if the clients have changed."""
        if clients != self._counted:
            self._counted = clients
            sizes = Counter(map(self._cluster_of, clients))
            share = self.participation
            self._quorums = {n: max(1, math.floor(share * sizes[n] + 0.5)) for n in sizes}
        return self._quorums

    def _cluster_of(self, client_id: int) -> int:
        # A client that joined after the clusters were formed belongs to the largest one.
        assert self._clusters is not None
        return self._clusters.get(client_id, 0)
