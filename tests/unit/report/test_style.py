from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fl_app.report.style import ALGORITHMS, looks

CONF = Path(__file__).resolve().parents[3] / "conf"


def test_every_algorithm_has_a_colour_of_its_own_choice_under_the_name_that_runs_report():
    names = [OmegaConf.load(path).name for path in (CONF / "algorithm").glob("*.yaml")]
    assert sorted(ALGORITHMS) == sorted(names)


def test_every_algorithm_of_a_full_comparison_can_be_told_apart():
    assert len(set(looks(ALGORITHMS))) == len(ALGORITHMS)


@pytest.mark.parametrize("algorithms", [["fedbuff"] * 36, ["fedbuff"] * 12 + ["fedasync"] * 12])
def test_every_cell_of_a_sweep_can_be_told_apart(algorithms):
    drawn = looks(algorithms)
    assert len(set(drawn)) == len(drawn)
    assert len({look.dashes for look in drawn[:9]}) == 1  # colours first
    assert drawn[0] == looks(["fedbuff"])[0]


def test_new_algorithm_has_a_fixed_colour_of_the_palette_too():
    (look,) = looks(["my_own"])
    assert looks(["fedavg", "my_own"])[1].colour == look.colour
    assert look.colour in {known.colour for known in looks(ALGORITHMS)}


def test_colour_of_an_algorithm_does_not_depend_on_its_company():
    alone = looks(["fedbuff"])[0]
    assert looks(["fedavg", "wkafl", "fedbuff"])[2] == alone
    settings = looks(["fedbuff", "fedbuff"])
    assert settings[0] == alone
    assert settings[1].colour == alone.colour
    assert settings[1].dashes != alone.dashes
