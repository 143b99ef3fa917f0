"""The mailbox of ``runtime=ray``, built from the parts of a run."""

import os
from typing import TYPE_CHECKING

from fl_app.cluster.connection import connect, disconnect, room
from fl_app.cluster.mailbox import ClusterMailbox

if TYPE_CHECKING:
    from fl_app.runner.components import Components


def build_cluster_mailbox(components: "Components") -> ClusterMailbox:
    """Connect to the configured cluster, and start its workers.

    Raises:
        ValueError: a value is not possible on this cluster.
        RunError: there is no such cluster, or no worker came up.
    """
    runtime, parallel = components.config.runtime, components.config.experiment.parallel
    num_workers = None if runtime.workers == "auto" else int(runtime.workers)
    gpus = runtime.gpus_per_worker
    cores = len(os.sched_getaffinity(0))
    connected = connect(runtime.address, max(cores, num_workers or 0))
    places = room(gpus)
    if parallel > places > 0:
        if connected:
            disconnect()
        raise ValueError(
            f"experiment.parallel={parallel} must be at most {places}, the number of workers for "
            "which the cluster has room: further cells would wait for processors that others hold"
        )
    return ClusterMailbox(
        components.recipe(),
        num_workers,
        shares=parallel,
        gpus=gpus,
        patience=runtime.patience,
        disconnects=connected,
    )
