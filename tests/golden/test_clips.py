"""Where the displacement or gradient is clipped, 3 and 4 with a bound of 1 act as 0.6 and 0.8."""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.ace import ACE
from fl_app.algorithms.asyncfeded import AsyncFedED
from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.fadas import FADAS
from fl_app.algorithms.fedstaleasync import FedStaleAsync
from fl_app.core.types import GlobalModel, Update


@pytest.mark.parametrize("make", [ACE, AsyncFedED, CA2FL, CANA, FADAS, FedStaleAsync])
def test_a_long_upload_acts_as_one_of_the_bound(make):
    kind = "delta" if make in (AsyncFedED, FADAS) else "pseudo"
    model = GlobalModel(vec(5, 5), 3, {2: vec(0, 0)})

    def moved(upload, **settings):
        strategy = make(**settings)
        both = (upload, vec(-0.3, 0.4))  # FADAS' first step is as long whatever the upload is
        updates = [Update(0, 2, each, kind, 10, 1.0) for each in both]
        return [strategy.aggregate(model, [update]) for update in updates]

    clipped = moved(vec(3, 4), clip_norm=1.0)
    np.testing.assert_allclose(clipped, moved(vec(0.6, 0.8)), rtol=1e-6)
    assert not np.allclose(clipped, moved(vec(3, 4)))
