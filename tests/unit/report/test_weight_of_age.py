"""What `scripts.weight_of_age` prints."""

import pytest

from fl_app.core.events import Aggregated, Event
from scripts.weight_of_age import shares


def version(age: list[int], **report: list[float]) -> Event:
    nobody = [0] * len(age)
    return Aggregated(1.0, 1, nobody, nobody, age, report=report)


def test_shares_are_over_all_versions_and_an_age_at_the_bound_is_not_old() -> None:
    events = [version([0, 20, 21], weight=[0.5, 0.25, 0.25]), version([40], weight=[1.0])]
    assert shares(events, 20) == (0.5, 0.625)


def test_versions_without_weights_do_not_count() -> None:
    assert shares([version([30]), version([0], weight=[1.0])], 20) == (0.0, 0.0)
    with pytest.raises(ValueError, match="no version reports weights"):
        shares([version([30])], 20)
