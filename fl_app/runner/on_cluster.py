"""The mailbox of ``runtime=ray``, built from the parts of a run."""

from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from fl_app.cluster.connection import RayCluster
from fl_app.cluster.crew import Crew
from fl_app.cluster.facts import digest_of_data
from fl_app.cluster.mailbox import ClusterMailbox
from fl_app.cluster.parcels import Packed, pack_object
from fl_app.cluster.results import Results
from fl_app.cluster.versions import Versions
from fl_app.cluster.worker import Setup

if TYPE_CHECKING:
    from fl_app.runner.factory import Components

KEPT_MODELS = 64  # for which a store that is started for a run has room, besides the data
SHARE = 4  # of a store: one part in so many is for model versions, and one for results


def build_cluster_mailbox(components: "Components") -> ClusterMailbox:
    """Connect to the configured cluster, and start its workers.

    Raises:
        ValueError: a value is not possible on this cluster.
        RunError: there is no such cluster, or no worker came up.
    """
    config, trainer, given = components.config, components.trainer, components.given
    runtime = config.runtime
    num_workers = None if runtime.workers == "auto" else int(runtime.workers)
    task = trainer.task
    by_name = given.task is None and "_target_" in config.task
    packed: list[Packed] = []

    def packed_task() -> Packed:
        if not packed:
            packed.append(pack_object(task))
        return packed[0]

    data_bytes = 0
    if not by_name:  # else the workers of this machine load what lies on its disk
        content, buffers = packed_task()
        data_bytes = len(content) + sum(buffer.nbytes for buffer in buffers)
    setup = pack_object(
        Setup(
            config=OmegaConf.to_yaml(config, resolve=True),
            digest=digest_of_data(task) if by_name else "",
            names=by_name,
            fixed=trainer.model.fixed_bytes(),
            make=given.trainer,
        )
    )
    cluster = RayCluster(
        runtime.address,
        num_workers=num_workers,
        cpus=runtime.cpus_per_worker,
        gpus=runtime.gpus_per_worker,
        store_bytes=KEPT_MODELS * components.sizes.model + data_bytes,
    )
    machines = cluster.machines().values()
    parallel, room = config.experiment.parallel, sum(machine.room for machine in machines)
    if parallel > room > 0:
        cluster.close()
        raise ValueError(
            f"experiment.parallel={parallel} must be at most {room}, the number of workers for "
            "which the cluster has room: further cells would wait for processors that others hold"
        )
    smallest = min((machine.store_bytes for machine in machines), default=0)
    share = max(smallest - data_bytes, 0) // (SHARE * parallel)
    return ClusterMailbox(
        Crew(cluster, setup, packed_task, num_workers, shares=parallel, patience=runtime.patience),
        Versions(cluster.put, share, cluster.inline_bytes),
        Results(share, cluster.inline_bytes),
        patience=runtime.patience,
    )
