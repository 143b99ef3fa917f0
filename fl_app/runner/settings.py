"""Keys of every run and of the runtimes, with defaults and bounds; torch is not needed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fl_app.core.errors import require
from fl_app.core.hyper import (
    BELOW_1,
    COUNT,
    NON_NEGATIVE,
    PATTERNS,
    POSITIVE,
    SEED,
    SWITCH,
    UNIT_INTERVAL,
    Bound,
    Checked,
    bounded,
    count,
    one_of,
    or_auto,
    or_none,
)
from fl_app.tasks.models import FORM, OWN

METRICS = Bound("[recall] or []", lambda v: isinstance(v, Sequence) and list(v) in ([], ["recall"]))
FILE = Bound("a file", lambda value: Path(str(value)).expanduser().is_file())
LOSS = Bound(FORM, lambda value: OWN.fullmatch(str(value)) is not None)
CLUSTER = Bound(
    "HOST:PORT, auto or null",
    lambda value: value in (None, "auto") or re.fullmatch(r"[^/\s]+:\d+", str(value)) is not None,
)
NOTHING = "there would be nothing to run"


@dataclass(kw_only=True)
class RunSettings(Checked):
    """Keys of every run that belong to no group.

    Attributes:
        seed: from which every random draw of the run follows.
        num_versions: published model versions after which a run ends; None where another key ends
            it.
        max_updates: client updates (accepted uploads) after which a run ends; None = no limit.
        max_seconds: seconds on the run's clock after which a run ends; None = no limit.
        target_accuracy: accuracy of an evaluation, in [0, 1], at which a run ends; None = no limit.
        eval_every: versions between evaluations.
        client_eval_every: versions between evaluations on the clients' own data; None = none.
        client_eval_fraction: share of the online clients that evaluate a version, in (0, 1].
        metrics: further metrics of every evaluation: recall (of each class).
        checkpoint_every: versions between checkpoints; None = one when the run is interrupted.
        resume: auto = resume the run in the folder hydra.run.dir, if there is one.
        failures: raise = an error in a client's code ends a run in virtual time; tolerate = its
            order fails, as always on real nodes.
        deadline: seconds after which an order expires and its place is refilled; None = never.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = ""

    seed: int = bounded(0, SEED, "every random stream starts from it")
    num_versions: int | None = bounded(100, or_none(COUNT), NOTHING)
    max_updates: int | None = bounded(None, COUNT, NOTHING)
    max_seconds: float | None = bounded(None, POSITIVE, "the run would end before it began")
    target_accuracy: float | None = bounded(
        None, UNIT_INTERVAL, "it is a share of 1, not a percentage"
    )
    eval_every: int = bounded(5, COUNT, "it counts versions")
    client_eval_every: int | None = None  # `ClientEvaluation` has the bounds of these two
    client_eval_fraction: float = 1.0
    metrics: Sequence[str] = bounded((), METRICS, "no other further metric is known")
    checkpoint_every: int | None = bounded(None, COUNT, "it counts versions")
    resume: str | None = bounded(
        None, one_of("auto"), "a run either resumes in its own folder or starts anew"
    )
    failures: str = bounded(
        "raise",
        one_of("raise", "tolerate"),
        "it decides whether an error in a client's code ends the run",
    )
    deadline: float | None = bounded(None, POSITIVE, "every order would be late")

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = not (self.num_versions is self.max_updates is self.max_seconds is None)
        bound = "an integer >= 1 without max_updates and max_seconds"
        require(ends, "num_versions", "null", bound, "the run would never end")


@dataclass(kw_only=True)
class TaskSettings(Checked):
    """Keys of every task; conf/task/ has those of a single one.

    Attributes:
        holdout: share of every client's examples kept for validation, in [0, 1).
        loss: package.module:callable of a batch's outputs and targets that returns their mean loss;
            None = the usual one.
        weights: file of the first model's weights: .safetensors, .npz (a run's model), or of
            torch.save; None = random.
        trainable: patterns of the names of the parameters to train; None = those with
            requires_grad.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "task"

    holdout: float = bounded(
        0.0,
        BELOW_1,
        "it is the share of every client's examples that it does not train on",
    )
    loss: str | None = bounded(None, LOSS, "it is called with outputs and targets of a batch")
    weights: str | None = bounded(None, FILE, "there is nothing to start from")
    trainable: Sequence[str] | None = bounded(None, PATTERNS, "nothing would be trained")


@dataclass(kw_only=True)
class Runtime(Checked):
    """Keys of all runtimes.

    Attributes:
        device: of torch: cpu; cuda = the first visible GPU; cuda:1 = the second; auto = the first
            GPU, if any.
    """

    _group = "runtime"

    device: str = "cpu"


@dataclass(kw_only=True)
class InProcess(Runtime):
    """Training in worker processes over shared memory, or on a GPU in the main process.

    Attributes:
        workers: processes; auto = one per core, none with a GPU; 0 = inline, in the main process.
        batch: clients at work that are trained in one operation; see docs/speed.md.
        train: False = nothing is trained or tested: a run predicts seconds, shares and staleness.
    """

    workers: int | str = bounded("auto", or_auto(count(0)), "0 trains in the main process")
    batch: int = bounded(1, COUNT, "it is the number of clients that are trained in one operation")
    train: bool = bounded(True, SWITCH, "it is a switch")


@dataclass(kw_only=True)
class OnRay(Runtime):
    """Training on the machines of a Ray cluster.

    Attributes:
        address: HOST:PORT of a cluster's head; auto = the cluster of this machine; None = one is
            started for the run.
        workers: on all machines together; auto = as many as fit.
        gpus_per_worker: GPUs that a worker reserves; 0.25 lets four workers share one.
        patience: real seconds one order may take before its worker is replaced.
    """

    address: str | None = bounded(
        None,
        CLUSTER,
        "it is the address that `ray start --head` prints (a Ray Client, ray://, copies every "
        "model through one more process)",
    )
    workers: int | str = bounded(
        "auto", or_auto(COUNT), "nobody would train; auto = as many as fit"
    )
    gpus_per_worker: float = bounded(0, NON_NEGATIVE, "it is a number of GPUs")
    patience: float = bounded(600, POSITIVE, "every worker would be replaced")

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = not self.gpus_per_worker or self.device != "cpu"
        bound = f"cuda or auto with runtime.gpus_per_worker={self.gpus_per_worker}"
        self._require(fits, "device", bound, "the workers would reserve GPUs and not use them")


@dataclass(kw_only=True)
class Deployment(Runtime):
    """Real nodes."""

    device: str = "auto"


RUNTIMES: dict[str, type[Runtime]] = {
    "inprocess": InProcess,
    "flower": Runtime,
    "ray": OnRay,
    "deployment": Deployment,
}
