from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fl_app.report.style import ALGORITHMS, IN_THE_DARK, PAPER, looks

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
    assert len({look.line for look in drawn[:9]}) == 1  # colours first
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
    assert settings[1].line != alone.line


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_colour_is_seen_in_the_dark():
    colours = {look.colour for look in looks(ALGORITHMS)}
    assert colours < set(IN_THE_DARK)
    assert len({IN_THE_DARK[colour] for colour in colours}) == len(colours)
    for colour in colours:
        contrast = (luminance(IN_THE_DARK[colour]) + 0.05) / (luminance(PAPER) + 0.05)
        assert contrast >= 2.5, colour
