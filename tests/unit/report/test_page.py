"""The page of a report: its content, and that it needs no other file."""

import json
import re

import pytest
import vl_convert
from helpers import EVENTFUL, ROUNDS, clients_evaluate, dispatch, python, write_cell

from fl_app.report import PAGE, write_report
from fl_app.report.__main__ import main


def page(folder, **options):
    """The page without its script."""
    write_report(folder, figures=False, **options)
    head, _, tail = (folder / PAGE).read_text().partition("<script>")
    return head + tail.partition("</script>")[2]


def figures(text):
    """The figures of a page, as its script reads them."""
    (data,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text)
    return json.loads(data)


def titles(text):
    return re.findall("<h2>(.*?)</h2>", text)


def test_page_of_a_run_tells_all_of_it(tmp_path):
    summary = {"stopped": "num_versions", "bytes_up": 2_000_000, "bytes_down": 3_000_000}
    write_cell(tmp_path, events=EVENTFUL, summary=summary, algorithm="fedbuff")
    text = page(tmp_path)
    assert "<h1>fedbuff</h1>" in text
    facts = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    expected = {"state": "ended by num_versions", "acc. final": "80.0%", "at 90% first s": "-"}
    expected |= {"versions": "2", "time": "11.0 s", "client updates": "2"}
    expected |= {"MB up": "2.0", "fail": "2", "rej": "3"}
    assert expected.items() <= facts.items()
    assert titles(text) == [
        "Who learns faster",
        "How stale the updates are",
        "Who trains when",
        "Failures and rejected replies: fedbuff",
        "Summary and configuration: fedbuff",
    ]
    assert "name: fedbuff" in text  # the configuration
    rows = [re.findall("<td.*?>(.*?)</td>", row, re.S) for row in text.split("<tr>")[2:]]
    assert rows[0] == ["1", "failure", "2.0 s", "1", "KeyError: &#39;&lt;b&gt;bold&lt;/b&gt;&#39;"]


def test_page_needs_no_other_file_and_its_figures_can_be_drawn(tmp_path):
    write_cell(tmp_path, events=EVENTFUL, algorithm="fedbuff")
    (tmp_path / "partition.csv").write_text("client,<cat>,end\n0,3,0\n1,0,2\n")
    text = page(tmp_path)
    assert not re.findall(r"""(?:src|href|import)\s*[=(]\s*["'](?!data:)""", text)
    specs = figures(text)
    assert len(specs) == text.count('class="figure"') == 4
    assert "1,2,end,2" in json.dumps(specs["partition"])
    for figure in specs.values():
        assert '"url"' not in json.dumps(figure)
        assert vl_convert.vegalite_to_svg(figure).startswith("<svg")


def test_head_tells_the_setting_and_no_path(tmp_path):
    for seed, alpha in ((0, 0.1), (1, 0.3)):
        folder = tmp_path / f"fedavg-seed{seed}"
        write_cell(folder, events=ROUNDS, summary={"version": "1.2", "commit": "abcdef0123456"})
        (folder / "config.yaml").write_text(
            "algorithm: {name: fedavg, schedule: {concurrency: 10}}\n"
            "task: {data: mnist, model: lenet}\nnum_clients: 50\nruntime: {name: inprocess}\n"
            f"partition: {{_target_: x.Dirichlet, alpha: {alpha}, min_size: 10}}\nseed: {seed}\n"
            "devices: {_target_: x.UniformRatio, ratio: 5, jitter: 0.2}\n"
        )
    text = page(tmp_path)
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text)[:7] == [
        ("data", "mnist"),
        ("model", "lenet"),
        ("clients", "50"),
        ("at work", "10"),
        ("partition", "Dirichlet (alpha 0.1, min_size 10), Dirichlet (alpha 0.3, min_size 10)"),
        ("devices", "UniformRatio (ratio 5, jitter 0.2)"),
        ("seeds", "0, 1"),
    ]
    assert str(tmp_path) not in text
    assert "fl-app 1.2, commit abcdef012," in text


def test_messages_of_clients_are_escaped(tmp_path):
    write_cell(
        tmp_path, events=EVENTFUL, summary={"stopped": "Diverged: <script>alert(1)</script>"}
    )
    text = page(tmp_path)
    assert "<b>bold" not in text
    assert "alert(1)</script>" not in text
    assert "KeyError: &#39;&lt;b&gt;bold" in text


def test_pages_of_a_running_run_and_of_an_empty_one(tmp_path):
    write_cell(tmp_path, events=[dispatch(0.0, 4)], runtime="deployment", algorithm="fedbuff")
    assert "still running" in page(tmp_path)
    (tmp_path / "events.jsonl").write_text("")
    assert "<h1>fedbuff</h1>" in page(tmp_path)


def test_warnings_are_at_the_top(tmp_path):
    write_cell(tmp_path, events=ROUNDS, summary={"collapsed": True}, algorithm="fedbuff")
    (warning,) = re.findall('<div class="warning">(.*?)</div>', page(tmp_path))
    assert warning.endswith("(a tenth of algorithm.client.local_lr may help): fedbuff")
    write_cell(tmp_path, summary={"collapsed": False})
    assert 'class="warning"' not in page(tmp_path)


def test_page_of_a_run_without_a_test_set_shows_evaluations_of_clients(tmp_path):
    order = {"kind": "evaluate_order", "t": 10, "client": 3, "order": 9, "version": 1, "bytes": 8}
    failure = {"kind": "failure", "t": 11, "client": 3, "order": 9, "base_version": 1}
    events = [
        *(dispatch(0, client) for client in range(2)),
        order,
        {**failure, "reason": "evaluation: OSError: no such file"},
        clients_evaluate(12, 10, 1, 0.4, 0.1),
        clients_evaluate(35, 30, 4, 0.8, 0.5),
    ]
    write_cell(tmp_path, events=events, algorithm="fedbuff")
    text = page(tmp_path)
    assert "On the clients" in titles(text)
    assert "Clients&#39; accuracy and loss of the global models" in text
    assert "worst decile 50.0%" in text
    assert "evaluation: OSError: no such file" in text


# -- the command -----------------------------------------------------------------------------------


def test_command_writes_table_and_figures_and_prints_the_table(tmp_path, capsys):
    write_cell(tmp_path / "fedavg", events=ROUNDS, algorithm="fedavg")
    main([str(tmp_path), "--target-accuracy", "0.5", "--pdf"])
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[1].startswith("fedavg,fedavg,0.95,0.95,0.725,3.0,2,")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}"
        for name in ("accuracy", "staleness", "timeline", "overview")
        for kind in ("png", "pdf")
    }
    out = capsys.readouterr().out
    assert f"page: {tmp_path / 'report.html'}" in out
    assert "fedavg  95.0%" in out


def test_the_table_is_shown_before_figures_are_drawn(tmp_path):
    write_cell(tmp_path, events=ROUNDS)
    calls = []

    def look(shown_table):
        calls.append((shown_table, {*tmp_path.iterdir()}))

    table = write_report(tmp_path, figures=False, tell=look)
    assert [shown_table for shown_table, _ in calls] == [table]
    assert tmp_path / PAGE not in calls[0][1]


@pytest.mark.parametrize("share", [0, 90, -0.1, float("nan")])
def test_reports_that_are_refused(tmp_path, share):
    write_cell(tmp_path / "fedavg", events=ROUNDS)
    with pytest.raises(ValueError, match=r"target_accuracy=.* must be in \(0, 1\]"):
        write_report(tmp_path, share, figures=False)


def test_a_report_has_the_targets_of_its_runs(tmp_path):
    write_cell(tmp_path, events=ROUNDS)
    (tmp_path / "config.yaml").write_text("experiment: {report_accuracy: 0.5}")
    assert write_report(tmp_path, figures=False).target_accuracy == 0.5
    assert write_report(tmp_path, 0.7, figures=False).target_accuracy == 0.7


def test_importing_the_report_imports_nothing_that_draws():
    heavy = {"altair", "pandas", "vl_convert"}
    code = f"import sys, fl_app.report; sys.exit(bool({heavy} & {{*sys.modules}}))"
    python("-c", code)
