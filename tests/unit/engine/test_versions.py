"""Versions are kept as long as something cites them."""

import numpy as np
import pytest

from fl_app.engine.versions import Versions


def vector(value: float) -> np.ndarray:
    return np.full(2, value, np.float32)


@pytest.fixture
def versions() -> Versions:
    return Versions(vector(0), num_trainable=1)


def test_the_current_version_is_kept_though_nothing_cites_it(versions: Versions) -> None:
    versions.publish(vector(1))
    assert versions.number == 1
    assert dict(versions.model.history).keys() == {1}
    assert versions.model.params.tolist() == [1, 1]
    assert versions.model.num_trainable == 1


def test_an_old_version_lasts_until_the_last_citation(versions: Versions) -> None:
    versions.cite(0)
    versions.cite(0)
    versions.publish(vector(1))
    versions.release(0)
    assert versions.model.history.keys() == {0, 1}
    versions.release(0)
    assert versions.model.history.keys() == {1}


def test_a_citation_of_the_current_version_that_ends_drops_nothing(versions: Versions) -> None:
    versions.cite(0)
    versions.release(0)
    assert versions.model.history.keys() == {0}


def test_a_restored_state_goes_on_alike(versions: Versions) -> None:
    versions.cite(0)
    versions.publish(vector(1))
    other = Versions(vector(5), num_trainable=1)
    other.load_state_dict(versions.state_dict(), share=lambda v: v + 0)
    assert other.number == 1
    assert {v: p.tolist() for v, p in other.model.history.items()} == {0: [0, 0], 1: [1, 1]}
    other.release(0)
    assert other.model.history.keys() == {1}
