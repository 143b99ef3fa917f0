"""The HTML report as a browser shows it."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from run_folders import ASYNCHRONOUS, EVENTFUL, ROUNDS, arrival, dispatch, failure, write_cell

from fl_app.report import PAGE, write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is installed"),
]


def opened(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page after its scripts ran, without the scripts, and what they complained of."""
    browser = subprocess.Popen(
        [
            str(BROWSER),
            "--headless",
            "--no-sandbox",  # which root, as in a container, cannot have
            "--disable-gpu",
            "--host-resolver-rules=MAP * ~NOTFOUND",  # no network
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--window-size=1280,4000",
            "--virtual-time-budget=60000",
            "--dump-dom",
            page.as_uri(),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        document, errors = browser.communicate(timeout=120)
    finally:
        if browser.poll() is None:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
    text = re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL)
    return text, [line for line in errors.splitlines() if "CONSOLE" in line]


def figures(text: str) -> list[str]:
    """The drawn figures, one after another."""
    return re.split(r'<div id="figure-\d+" class="plotly-graph-div js-plotly-plot"', text)[1:]


def test_report_of_a_run_is_drawn_without_complaints(tmp_path: Path) -> None:
    write_cell(tmp_path, events=EVENTFUL, summary={"stopped": "seconds"}, algorithm="fedbuff")
    (tmp_path / "metrics.csv").write_text(
        "version,t,accuracy,loss,bytes_down,bytes_up\n0,0.0,0.1,1,0,0\n2,7.0,0.8,1,4000,800\n"
    )
    write_report(tmp_path, figures=False)
    text, complaints = opened(tmp_path / PAGE, tmp_path / "profile")
    assert complaints == []
    drawn = figures(text)
    assert len(drawn) == 7
    assert all('class="main-svg"' in figure for figure in drawn)
    accuracy, loss, timeline, ages, participation, traffic, reports = drawn
    for curve in (accuracy, loss, traffic, reports):
        assert 'class="js-line"' in curve
    assert timeline.count('class="point"') >= 7  # an order each
    for sign in ("failed", "deadline passed", "refused", "paused", "checkpoint", "new version"):
        assert f">{sign}</text>" in timeline
    assert 'class="point"' in ages
    assert ">lost</text>" in participation


def test_report_of_an_experiment_is_drawn_without_complaints(tmp_path: Path) -> None:
    for seed, events in enumerate((ASYNCHRONOUS, ASYNCHRONOUS[:9])):
        write_cell(tmp_path / f"fedasync-seed{seed}", events=events, algorithm="fedasync")
    write_cell(tmp_path / "fedavg", events=ROUNDS, algorithm="fedavg")
    write_report(tmp_path, figures=False)
    text, complaints = opened(tmp_path / PAGE, tmp_path / "profile")
    assert complaints == []
    drawn = figures(text)
    assert len(drawn) == 6
    assert all('class="main-svg"' in figure for figure in drawn)
    assert ">fedasync</text>" in drawn[0]
    assert 'class="js-fill"' in drawn[0]  # the band of the seeds


def test_report_of_thousands_of_clients_opens(tmp_path: Path) -> None:
    events = []
    for round_ in range(10):
        start = 10.0 * round_
        events += [dispatch(start, client) for client in range(3000)]
        events += [
            (failure if client % 50 == round_ else arrival)(start + 1 + client / 3000, client)
            for client in range(3000)
        ]
    write_cell(tmp_path, events=events)
    write_report(tmp_path, figures=False)
    text, complaints = opened(tmp_path / PAGE, tmp_path / "profile")
    assert complaints == []
    assert "60 of 3,000 clients" in text
    assert figures(text)[0].count('class="point"') >= 600
