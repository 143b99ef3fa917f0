"""What the equations of several algorithms have in common, by hand: clips and buffers."""

import numpy as np
import pytest
from helpers import sent, vec

from fl_app.algorithms.ace import ACE
from fl_app.algorithms.asyncfeded import AsyncFedED
from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.fadas import FADAS
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.feddyn import FedDyn
from fl_app.algorithms.fedhist import FedHist
from fl_app.algorithms.fedstaleasync import FedStaleAsync
from fl_app.algorithms.gsgm import GSGM
from fl_app.algorithms.port import PORT
from fl_app.algorithms.scaffold import SCAFFOLD
from fl_app.algorithms.wkafl import WKAFL
from fl_app.core.types import GlobalModel


@pytest.mark.parametrize("make", [ACE, AsyncFedED, CA2FL, CANA, FADAS, FedAvgK, FedStaleAsync])
def test_a_long_upload_acts_as_one_of_the_bound(make):
    """Clipped to 1, 3 and 4 act as 0.6 and 0.8."""
    kind = "delta" if make in (AsyncFedED, FADAS) else "pseudo"
    model = GlobalModel(vec(5, 5), 3, {2: vec(0, 0)})

    def moved(upload, **settings):
        strategy = make(**settings)
        both = (upload, vec(-0.3, 0.4))  # FADAS' first step is as long whatever the upload is
        return [strategy.aggregate(model, [sent(0, 2, *each, kind=kind)]) for each in both]

    clipped = moved(vec(3, 4), clip_norm=1.0)
    np.testing.assert_allclose(clipped, moved(vec(0.6, 0.8)), rtol=1e-6)
    assert not np.allclose(clipped, moved(vec(3, 4)))


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        (ACE(), "pseudo"),
        (CA2FL(num_clients=9, clip_norm=0.1), "pseudo"),
        (CANA(clip_norm=0.1), "pseudo"),
        (FADAS(), "delta"),
        (FedAvgK(server_lr=0.5, clip_norm=0.1), "pseudo"),
        (FedDyn(), "model"),
        (FedHist(egs=True, ina=True, buffer_length=1, fusion=1.0), "pseudo"),
        (FedStaleAsync(num_clients=9, clip_norm=0.1), "pseudo"),
        (GSGM(momentum=0.5), "gradient"),
        (PORT(staleness_weight=0.0), "delta"),
        (SCAFFOLD(server_lr=0.5), "delta"),
        (WKAFL(momentum=0.5, clip_norm=0.1, min_similarity=-1), "gradient"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_buffers_move_by_the_mean_of_the_uploads_and_nothing_else(strategy, kind):
    """By 2 of the uploads 4 and 0, in two versions: no rate, clip, momentum or memory."""
    model = GlobalModel(vec(1, 0), 1, {0: vec(0, 0)}, num_trainable=1)
    toward = 1 if kind in ("delta", "model") else -1
    for _ in range(2):
        extra = {"control": vec(1, 0)}
        updates = [sent(c, 1, 1, 4 * c, kind=kind, extra=extra) for c in range(2)]
        assert strategy.aggregate(model, updates)[1] == pytest.approx(2 * toward, rel=1e-6)


def test_buffers_take_a_stale_upload_like_a_fresh_one():
    model = GlobalModel(vec(0, 0), 3, num_trainable=1)
    for base in (0, 3):
        assert FedStaleAsync(num_clients=2).aggregate(model, [sent(0, base, 4, 4)])[1] == -4
