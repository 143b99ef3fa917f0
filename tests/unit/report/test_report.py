import subprocess
import sys

import pytest
from run_folders import ASYNCHRONOUS, ROUNDS, write_cell

from fl_app.report import print_table, write_report
from fl_app.report.__main__ import main


@pytest.mark.parametrize(
    ("words", "kinds"), [([], {"png"}), (["--pdf", "--svg"], {"png", "pdf", "svg"})]
)
def test_command_writes_table_and_figures_and_prints_the_table(tmp_path, capsys, words, kinds):
    write_cell(tmp_path / "fedavg", events=ROUNDS, algorithm="fedavg")
    main([str(tmp_path), "--target-accuracy", "0.5", *words])
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[1].startswith("fedavg,fedavg,-,0.95,0.95,0.5166666666666667,3.0,2,")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}"
        for name in ("accuracy", "staleness", "timeline", "overview")
        for kind in kinds
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


def test_table_is_told_before_anything_is_drawn(tmp_path):
    write_cell(tmp_path, events=ROUNDS)
    there = []
    table = write_report(tmp_path, tell=lambda told: there.append((told, {*tmp_path.iterdir()})))
    ((told, files),) = there
    assert told == table
    assert {tmp_path / "report.html", tmp_path / "figures"}.isdisjoint(files)


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


def test_importing_the_report_does_not_import_altair():
    code = "import sys, fl_app.report; sys.exit(bool({'altair', 'vl_convert'} & {*sys.modules}))"
    subprocess.run([sys.executable, "-c", code], check=True)


# As the first release wrote it: orders without numbers, transfers without bytes, kind "notice".
FIRST_RELEASE = """\
{"kind":"evaluate","t":0.0,"version":0,"accuracy":0.1,"loss":2.3}
{"kind":"dispatch","t":0.0,"client":0,"version":0}
{"kind":"dispatch","t":0.0,"client":1,"version":0}
{"kind":"arrival","t":1.0,"client":0,"base_version":0,"age":0,"loss":2.1}
{"kind":"aggregate","t":1.0,"version":1,"client":[0],"age":[0],"weight":[0.5]}
{"kind":"dispatch","t":1.0,"client":0,"version":1}
{"kind":"notice","t":1.5,"client":1,"version":1}
{"kind":"failure","t":2.0,"client":1,"base_version":0,"reason":"deadline passed"}
{"kind":"dispatch","t":2.0,"client":1,"version":1}
{"kind":"reject","t":2.5,"client":1,"base_version":0,"reason":"late: its deadline had passed"}
{"kind":"arrival","t":3.0,"client":0,"base_version":1,"age":0,"loss":1.9}
{"kind":"aggregate","t":3.0,"version":2,"client":[0],"age":[0],"weight":[0.5]}
{"kind":"evaluate","t":3.0,"version":2,"accuracy":0.95,"loss":0.4}
{"kind":"checkpoint","t":3.0,"version":2}
"""


def test_logs_of_the_first_release_can_be_reported(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("algorithm: {name: port}\nruntime: {name: inprocess}\n")
    (tmp_path / "events.jsonl").write_text(FIRST_RELEASE)
    print_table(write_report(tmp_path, figures=False))
    header, row = (line.split(",") for line in (tmp_path / "table.csv").read_text().splitlines())
    told = dict(zip(header, row, strict=True))
    assert (told["final_accuracy"], told["seconds_to_target"]) == ("0.95", "3.0")
    assert (told["client_updates"], told["failures"], told["rejected"]) == ("2", "1", "1")
    assert "port  95.0%" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    for text in ("deadline passed", "late or duplicate reply", "recalled"):
        assert text in page, text


def test_a_damaged_line_costs_its_event_alone(tmp_path, capsys):
    lines = FIRST_RELEASE.splitlines(keepends=True)
    damaged = [*lines[:3], '{"kind":"arri\n', *lines[4:]]
    (tmp_path / "events.jsonl").write_text("".join(damaged))
    with pytest.warns(UserWarning, match="damaged lines left out: 1"):
        main([str(tmp_path), "--last", "1"])
    assert "| 95.0 " in capsys.readouterr().out
