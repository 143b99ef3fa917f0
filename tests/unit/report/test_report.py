import subprocess
import sys

import pytest
from run_folders import ASYNCHRONOUS, ROUNDS, write_cell

from fl_app.report import write_report
from fl_app.report.__main__ import main


def test_command_writes_table_and_figures_and_prints_the_table(tmp_path, capsys):
    write_cell(tmp_path / "fedavg", events=ROUNDS, algorithm="fedavg")
    main([str(tmp_path), "--target-accuracy", "0.5"])
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[1].startswith("fedavg,fedavg,-,0.95,0.95,3.0,2,")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}"
        for name in ("accuracy", "staleness", "timeline", "overview")
        for kind in ("png", "pdf")
    }
    out = capsys.readouterr().out
    assert f"page: {tmp_path / 'report.html'}" in out
    assert (tmp_path / "report.html").is_file()
    assert "at 50%" in out
    assert "fedavg  95.0%" in out


def test_report_without_figures_draws_none(tmp_path):
    write_cell(tmp_path, events=ASYNCHRONOUS, algorithm="fedasync")
    table = write_report(tmp_path, figures=False)
    assert table.target_accuracy == 0.9
    assert table.rows[0].seconds_to_target == 2.0
    assert (tmp_path / "table.csv").is_file()
    assert not (tmp_path / "figures").exists()


def test_report_of_some_cells_has_all_their_seeds(tmp_path):
    for name in ("fedavg-seed0", "fedavg-seed1", "fedasync"):
        write_cell(tmp_path / name, events=ROUNDS)
    table = write_report(tmp_path, figures=False, only=["fedavg"])
    runs = [row.cell for row in table.rows if row.statistic == "run"]
    assert runs == ["fedavg-seed0", "fedavg-seed1"]
    with pytest.raises(ValueError, match=r"only=fedbuff must be among fedasync, fedavg: "):
        write_report(tmp_path, only=["fedbuff"])


@pytest.mark.parametrize("target", [0, 90, -0.1, float("nan")])
def test_target_that_is_no_fraction_is_refused(tmp_path, target):
    write_cell(tmp_path, events=ROUNDS)
    with pytest.raises(ValueError, match=r"target_accuracy=.* must be above 0 and at most 1"):
        write_report(tmp_path, target)


def test_command_refuses_a_folder_without_cells(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path)])
    assert stopped.value.code == 2
    assert "nothing to report" in capsys.readouterr().err


def test_command_watches_a_run_that_has_ended_once(tmp_path, capsys):
    write_cell(tmp_path, events=ROUNDS, summary={}, algorithm="fedavg")
    main([str(tmp_path), "--watch", "5", "--span", "1", "2"])
    assert capsys.readouterr().out == f"page: {tmp_path / 'report.html'}\n"
    assert "1.0 s to 2.0 s of 6.0 s" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "figures").exists()


def test_importing_the_report_imports_neither_matplotlib_nor_plotly():
    code = "import sys, fl_app.report; sys.exit(bool({'matplotlib', 'plotly'} & {*sys.modules}))"
    subprocess.run([sys.executable, "-c", code], check=True)
