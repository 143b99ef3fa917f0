"""Devices that train during transfers, and the equal devices of Overlap-FedAvg's Table 4.

Table 4 gives the seconds of one iteration under FedAvg (five local epochs and the communication)
and under Overlap-FedAvg (five local epochs alone). The difference is the communication. NOTE: it is
3 to 12 seconds per million parameters, so it follows from no bandwidth. The numbers are used as
they are. A model is identified by its number of parameters.
"""

import math
from collections.abc import Sequence

import numpy as np

from fl_app.core.errors import require, require_count
from fl_app.core.types import Parts
from fl_app.devices.compute import MeanSeconds
from fl_app.devices.fleet import Fleet

# parameters -> seconds of five local epochs on the largest client, seconds of communication
TABLE_4 = {
    199_210: (28.85, 2.35),  # MLP, MNIST
    1_199_882: (28.31, 4.65),  # MnistNet, Fashion-MNIST
    1_204_655: (42.15, 5.04),  # MnistNet, EMNIST
    878_538: (45.33, 2.74),  # CNNCifar, CIFAR-10
    2_440_394: (49.33, 15.07),  # VGG_R, CIFAR-10
    11_169_162: (115.31, 41.57),  # ResNet_R, CIFAR-10
    11_215_332: (115.30, 40.72),  # ResNet_R, CIFAR-100
    13_828_478: (87.90, 45.29),  # Transformer, WikiText-2
}


class OverlapCompute(MeanSeconds):
    """Training time is proportional to a client's data; the largest client takes Table 4's time.

    Args:
        num_bytes: size of a model, 4 bytes per parameter.
        num_examples: n_i of every client, all > 0.
        seed: seed of the run.
        jitter: see `MeanSeconds`.
        epochs: local epochs of an order, >= 1; Table 4 has five.

    Raises:
        ValueError: a value is out of its bounds, or Table 4 does not have the model.
    """

    def __init__(
        self,
        *,
        num_bytes: int,
        num_examples: Sequence[int],
        seed: int = 0,
        jitter: float = 0.0,
        epochs: int = 5,
    ) -> None:
        require_count("devices.epochs", epochs, "training would take no time")
        seconds, _ = _row(num_bytes)
        seconds *= epochs / 5
        sizes = np.asarray(num_examples, float)
        super().__init__(seconds * sizes / sizes.max(), seed=seed, jitter=jitter)


class OverlapNetwork:
    """Download and upload take half of Table 4's communication each.

    Args:
        num_bytes: size of a model, 4 bytes per parameter.
        download_share: size of an order over that of a model.
        upload_share: size of an upload over that of a model.

    Raises:
        ValueError: Table 4 does not have the model.
    """

    def __init__(
        self, *, num_bytes: int, download_share: float = 1.0, upload_share: float = 1.0
    ) -> None:
        _, communication = _row(num_bytes)
        self._seconds = communication / 2
        self._download_share = download_share
        self._upload_share = upload_share

    def download(self, client_id: int, sequence: int) -> float:
        """Seconds until the client has the model of its order number `sequence`."""
        return self._seconds * self._download_share

    def upload(self, client_id: int, sequence: int) -> float:
        """Seconds from the end of training until the server has the update."""
        return self._seconds * self._upload_share


class Overlapping:
    """A fleet whose clients train during their upload and their next download.

    All clients work in step. A cycle has as many local epochs as the slowest client needs to cover
    its transfers, at least one and at most `max_epochs`. It lasts as long as its training or its
    transfers, whichever takes longer.

    Args:
        fleet: the devices; their training time is the time of `max_epochs` local epochs.
        num_clients: N.
        max_epochs: E_max >= 1.
        usual: `fleet` without the fixed part that travels with first orders; None = it has none.

    Attributes:
        local_epochs: number of local epochs in a cycle.
    """

    def __init__(
        self, fleet: Fleet, num_clients: int, max_epochs: int, usual: Fleet | None = None
    ) -> None:
        self._fleet = fleet
        usual = usual or fleet
        parts = [usual.parts(client_id, 0, 0.0) for client_id in range(num_clients)]
        epoch = max(each.training for each in parts) / max_epochs
        transfers = max(each.download + each.upload for each in parts)
        self.local_epochs = min(max(math.ceil(transfers / epoch - 1e-9), 1), max_epochs)
        self._share = self.local_epochs / max_epochs

    def parts(self, client_id: int, sequence: int, now: float) -> Parts:
        """The seconds of a cycle, all of them as training: transfers overlap with it.

        A client's first cycle does not overlap: its training needs the download.
        """
        work = download, training, upload = self._work(client_id, sequence, now)[:3]
        if sequence == 0:
            return Parts(0.0, download + training + upload, 0.0, work)
        return Parts(0.0, max(training, download + upload), 0.0, work)

    def joules(
        self, client_id: int, sequence: int, now: float, elapsed: float = math.inf
    ) -> float | None:
        """Energy of an order: `Fleet.joules` for the work of one cycle.

        All clients work in step, so no training is cut short. An evaluation takes a part of a
        cycle, and that part of its energy.
        """
        joules = self._fleet.joules_of(self._work(client_id, sequence, now))
        seconds = self.parts(client_id, sequence, now).seconds
        if joules is None or elapsed >= seconds or math.isclose(elapsed, seconds, rel_tol=1e-6):
            return joules
        return joules * elapsed / seconds

    def _work(self, client_id: int, sequence: int, now: float) -> Parts:
        """The transfers and the training of one cycle."""
        parts = self._fleet.parts(client_id, sequence, now)
        return parts._replace(training=parts.training * self._share)


def _row(num_bytes: int) -> tuple[float, float]:
    num_params = num_bytes // 4
    require(
        num_params in TABLE_4,
        "task.model's number of parameters",
        num_params,
        f"one of {', '.join(map(str, TABLE_4))} with devices=overlap",
        "Overlap-FedAvg measured no other model",
    )
    return TABLE_4[num_params]
