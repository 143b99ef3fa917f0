"""An order is download, training and upload, in seconds and in joules."""

import math

import pytest

from fl_app.devices import Energy, Fleet


class Two:
    """Training takes 10 s."""

    mean_seconds = (10.0,)

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        return 10.0


class Transfers:
    """Three seconds down, four up."""

    def download(self, client_id: int, sequence: int) -> float:
        return 3.0

    def upload(self, client_id: int, sequence: int) -> float:
        return 4.0


def test_seconds_are_those_of_all_three() -> None:
    assert Fleet(Two()).parts(0, 0, 0.0).seconds == 10.0
    assert Fleet(Two(), Transfers()).parts(0, 0, 0.0).seconds == 17.0


@pytest.mark.parametrize(
    ("elapsed", "joules"),
    [
        (0.0, 0.0),
        (2.0, 2 * 1.0),  # downloading
        (5.0, 3 * 1.0 + 2 * 5.0),  # training
        (14.0, 4 * 1.0 + 10 * 5.0),  # uploading
        (17.0, 7 * 1.0 + 10 * 5.0),
        (math.inf, 7 * 1.0 + 10 * 5.0),
    ],
)
def test_joules_of_the_first_seconds_of_an_order(elapsed: float, joules: float) -> None:
    fleet = Fleet(Two(), Transfers(), Energy(compute_watts=5.0, radio_watts=1.0))
    assert fleet.joules(0, 0, 0.0, elapsed) == pytest.approx(joules)


def test_energy_is_unknown_unless_it_is_given() -> None:
    assert Fleet(Two(), Transfers()).joules(0, 0, 0.0) is None
    with pytest.raises(ValueError, match=r"devices\.energy\.radio_watts=-1\.0"):
        Energy(1.0, -1.0)
