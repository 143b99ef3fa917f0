"""EAFL: weights by staleness within clusters of similar gradients, by data between clusters.

Asynchronous federated learning with dynamic clustering by the similarity of gradients (GDC),
staleness-aware semi-asynchronous aggregation within (SAA) and data-size-aware synchronous
aggregation between clusters (DSA); its Algorithm 1, eq. 4. No code is published.

Server, at version t, once the first k_n of every cluster X_n have reported, V_n:

    gbar_n  = sum_{i in V_n} |D_i| / (sum_{j in V_n} |D_j|) 1/tau_i g_i        SAA (4)
    w_{t+1} = w_t - eta sum_n |D_n| / |D| gbar_n                              DSA
    k_n     = max(1, floor(phi |X_n| + 1/2))

At t = 0 and every R versions (GDC) the server puts all present clients into N clusters by k-means
over g_i / ||g_i||, whose squared distances are 2 - 2 cos(g_i, g_j). At t = 0 each client trains at
w_0 only for the clusters. Later clusters use each client's latest gradient, without extra training.

Client: g_i, the gradient of one mini-batch at w_o, or (w_o - w_i) / (sum of local learning rates).

Symbols: eta server_lr, N num_clusters, R recluster_every, phi participation, tau_i = t - o + 1 >= 1
the staleness, |D_i| number of examples of client i, |D_n| of all of X_n, |D| of all clusters.

Ablations: ``recluster=False`` (w/o GDC) keeps the clusters of t = 0 [A]. ``staleness=False`` (w/o
SAA) leaves out 1/tau_i. The paper has two descriptions of w/o DSA. By the name and the numbers,
each cluster's aggregate makes a version of its own when it is complete, w_{t+1} = w_t - eta gbar_n:
``synchronous=False, by_data=False``. N such versions are one iteration, in which R and tau_i count.
By the text, clusters are aggregated "in a synchronous manner rather than an asynchronous manner":
all clusters at once, but without the weights by data, 1 / N each: ``by_data=False`` alone [A].

Deviations: within a cluster the weights sum to less than 1, as printed. The step shrinks with the
staleness, so eta must be several times that of an average, unless ``normalise=True`` divides the
weights by their sum. Gradients are at w_o, the received model (the paper: at the client's).
Clusters have no heads that relay traffic. Collecting the gradients for later clusters takes no
time. A client whose gradient is 0, or that joins after the clusters were formed, belongs to the
largest cluster. The schedule decides which clients the server waits for
(`fl_app.schedule.clustered_quorum.ClusteredQuorum`).
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from fl_app.core.errors import require
from fl_app.core.extras import require_installed
from fl_app.core.hyper import COUNT, POSITIVE, SHARE, bounded
from fl_app.core.staleness import polynomial
from fl_app.core.types import GlobalModel, Indices, Numbers, Updates, Vector
from fl_app.core.vector import blocks, cosines
from fl_app.schedule import Schedule
from fl_app.schedule.clustered_quorum import ClusteredQuorum
from fl_app.strategy.weighted import WeightedGradients

BLOCK = 1 << 13  # entries of every gradient that are multiplied at a time, as doubles


@dataclass(kw_only=True)
class EAFL(WeightedGradients):
    """Clusters clients by their gradients, so that each kind of data contributes to each version.

    The defaults are those of the paper for MNIST, except server_lr: the paper's 0.005 is for inputs
    of 0 to 255; 1.5 is for inputs of 0 to 1 [A]. The server keeps every client's latest gradient.

    Args:
        num_clusters: N.
        recluster_every: R, iterations.
        participation: phi, the share of a cluster that the server waits for.
        normalise: whether the weights within a cluster are divided by their sum.
        recluster: False forms clusters only once.
        staleness: False sets tau_i = 1.
        synchronous: False aggregates each cluster when its own quorum has reported.
        by_data: False = clusters count alike, without |D_n| / |D|.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> one = Update(1, 3, np.array([2, 0], np.float32), "gradient", 10, 0.5)
        >>> other = Update(2, 3, np.array([0, 2], np.float32), "gradient", 30, 0.5)
        >>> strategy = EAFL(server_lr=1.0, num_clusters=2)
        >>> strategy.cluster(model, [one, other])
        {1: 1, 2: 0}
        >>> strategy.aggregate(model, [one, other]).tolist()
        [-0.5, -1.5]
    """

    looks_at = "every client's gradient, to form clusters"
    first_state = {"clusters": {}, "examples": {}}  # by client

    server_lr: float = bounded(1.5, POSITIVE, "the model would not move")
    num_clusters: int = bounded(5, COUNT, "clients belong to a cluster")
    recluster_every: int = bounded(100, COUNT, "the server would do nothing else")
    participation: float = bounded(
        0.1, SHARE, "it is the share of a cluster that the server waits for"
    )
    normalise: bool = False
    recluster: bool = True
    staleness: bool = True
    synchronous: bool = True
    by_data: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_installed("sklearn")
        self.schedule = ClusteredQuorum(  # type: ignore[misc]  # with this class's keywords
            self.num_clusters,
            self.participation,
            self.recluster_every,
            self.synchronous,
            self.recluster,
        )

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        if not schedule.surveys:
            raise ValueError(
                "EAFL needs algorithm/schedule=clustered_quorum: no other schedule asks for "
                "clusters, and without clusters it is algorithm=safl"
            )
        for key in ("num_clusters", "synchronous"):
            own = getattr(self, key)
            other, bound = getattr(schedule, key, own), f"algorithm.strategy.{key}={own}"
            reason = "updates would be weighed for other clusters than they are waited for"
            require(own == other, f"algorithm.schedule.{key}", other, bound, reason)

    def cluster(self, model: GlobalModel, updates: Updates) -> Mapping[int, int]:
        gradients = {u.client_id: model.gradient(u)[: model.num_trainable] for u in updates}
        clusters = dict.fromkeys(gradients, 0)
        nonzero = {client_id: g for client_id, g in gradients.items() if g.any()}
        if nonzero:
            # Equal gradients at equal versions make equal clusters.
            labels = k_means([*nonzero.values()], self.num_clusters, seed=model.version)
            clusters |= zip(nonzero, labels.tolist(), strict=True)
        self.state["clusters"] = clusters
        self.state["examples"] = {update.client_id: update.num_examples for update in updates}
        return clusters

    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        clusters, examples = self.state["clusters"], self.state["examples"]
        examples |= {update.client_id: update.num_examples for update in updates}
        all_labels = np.array([clusters.get(client_id, 0) for client_id in examples])
        data = np.bincount(all_labels, list(examples.values()))  # |D_n|
        labels = np.array([clusters.get(update.client_id, 0) for update in updates])
        reported = np.unique(labels)

        inverse = np.ones(len(updates))
        if self.staleness:
            versions = 1 if self.synchronous else data.size  # of an iteration
            inverse[:] = [polynomial(model.age(update) // versions, 1.0) for update in updates]
        sizes = np.array([update.num_examples for update in updates], np.float64)
        within = sizes / np.bincount(labels, sizes)[labels] * inverse
        if self.normalise:
            within /= np.bincount(labels, within)[labels]
        # A cluster without present clients does not shorten the step of the others.
        share = data if self.by_data else np.ones(data.size)
        whole = share[reported] if self.synchronous or not self.by_data else share
        between = share / whole.sum()
        weights: Numbers = between[labels] * within

        self.report["cluster_sizes"] = np.bincount(all_labels).tolist()
        self.report["quorums"] = np.bincount(labels, minlength=data.size).tolist()
        return weights


def k_means(gradients: Sequence[Vector], num_clusters: int, seed: int) -> Indices:
    """Clusters of M vectors ``(d,)``, none of them 0, by direction.

    Returns:
        Labels ``(M,)``, numbered by falling size. There are fewer than `num_clusters` if there are
        fewer different directions.
    """
    # Seconds, which checks of a configuration do not need. Before the limit, or it would not hold.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with (
        threadpool_limits(1),
        warnings.catch_warnings(),
    ):  # one thread: the same bits on any number of cores
        products = gram(gradients)
        lengths = np.sqrt(np.diag(products))
        # These M coordinates have the same distances as the M directions, and k-means uses no more.
        values, axes = np.linalg.eigh(cosines(products, lengths, lengths))
        points = axes * np.sqrt(np.maximum(values, 0))
        warnings.simplefilter("ignore", ConvergenceWarning)  # with too few different directions
        labels = KMeans(
            min(num_clusters, len(points)), n_init=10, max_iter=100, tol=1e-4, random_state=seed
        ).fit_predict(points)
    _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return np.argsort(np.argsort(-sizes, kind="stable"))[labels]


def gram(vectors: Sequence[Vector]) -> Numbers:
    """Inner products of M vectors ``(d,)``, shape ``(M, M)``."""
    products = np.zeros((len(vectors), len(vectors)))
    for place in blocks(vectors[0].size, BLOCK):
        rows = np.array([vector[place] for vector in vectors], np.float64)
        products += rows @ rows.T
    return products
