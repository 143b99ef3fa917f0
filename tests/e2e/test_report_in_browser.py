"""The HTML report as a browser shows it."""

from pathlib import Path

import pytest
from browser import measured, needs_browser, opened
from run_folders import ASYNCHRONOUS, EVENTFUL, ROUNDS, write_cell

from fl_app.report import PAGE, write_report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), needs_browser]


def test_report_of_a_run_is_drawn_without_complaints_and_fits_a_phone(tmp_path: Path) -> None:
    write_cell(tmp_path, events=EVENTFUL, summary={"stopped": "seconds"}, algorithm="fedbuff")
    (tmp_path / "partition.csv").write_text("client,cat,dog\n0,3,0\n1,0,2\n")
    write_report(tmp_path, figures=False)
    text, complaints = opened((tmp_path / PAGE).as_uri(), tmp_path / "profile")
    assert complaints == []
    assert text.count("<canvas") == text.count('class="figure') == 4
    found = measured(tmp_path / PAGE, tmp_path, 390, dark=False, measures="")
    assert found["needed"] <= found["width"] == 390


def test_report_of_an_experiment_is_drawn_without_complaints(tmp_path: Path) -> None:
    for seed, events in enumerate((ASYNCHRONOUS, ASYNCHRONOUS[:9])):
        write_cell(tmp_path / f"fedasync-seed{seed}", events=events, algorithm="fedasync")
    write_cell(tmp_path / "fedavg", events=ROUNDS, algorithm="fedavg")
    write_report(tmp_path, figures=False)
    text, complaints = opened((tmp_path / PAGE).as_uri(), tmp_path / "profile")
    assert complaints == []
    assert text.count("<canvas") == text.count('class="figure') == 3
