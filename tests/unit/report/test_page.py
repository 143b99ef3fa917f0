import json
import os
import re

import pytest
from run_folders import ASYNCHRONOUS, EVENTFUL, ROUNDS, clients_evaluate, dispatch, write_cell

from fl_app.report import PAGE, watch, write_report

LIBRARY = re.compile(r"<script>/\*\*.*?</script>", re.DOTALL)  # plotly.js


def page(folder, **options):
    """The page without the library, and how often that was there."""
    write_report(folder, figures=False, **options)
    text, count = LIBRARY.subn("", (folder / PAGE).read_text())
    assert count == 1
    return text


def figures(text):
    """The figures of a page, as its script reads them."""
    (found,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text)
    return json.loads(found)


def test_page_of_a_run_tells_all_of_it(tmp_path):
    summary = {"stopped": "num_versions", "bytes_up": 2_000_000, "bytes_down": 3_000_000}
    write_cell(tmp_path, events=EVENTFUL, summary=summary, algorithm="fedbuff")
    text = page(tmp_path)
    assert "<h1>fedbuff</h1>" in text
    assert "ended by num_versions" in text
    for tile in (
        "<span>accuracy</span><b>80.0%</b><small>best 80.0%</small>",
        "<span>first at 90%</span><b>never</b><small></small>",
        "<span>stays at 90%</span><b>never</b><small>mean of 5 evaluations</small>",
        "<span>versions</span><b>2</b>",
        "<span>client updates</span><b>2</b><small>2 more under way</small>",
        "<span>time</span><b>11.0 s</b><small>virtual</small>",
        "<span>traffic</span><b>5.0 MB</b><small>2.0 MB up</small>",
        "<span>failures</span><b>2</b><small>3 replies rejected</small>",
    ):
        assert tile in text
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "Learning",
        "Who trained when",
        "Staleness and participation",
        "Traffic and aggregations",
        "Failures and rejected replies",
    ]
    assert len(figures(text)) == text.count('class="figure"') == 6
    assert "name: fedbuff" in text  # the configuration
    assert "<pre>0.00 s: order, version 0\n" in text  # a story


def test_page_says_how_much_of_the_time_the_server_was_at_work(tmp_path):
    busy = {"dispatch": 0.5, "receipt": 1.0, "aggregation": 0.0, "evaluation": 7.0}
    events = [{**e, "busy": busy} if e["kind"] == "aggregate" else e for e in EVENTFUL]
    write_cell(tmp_path, events=events)
    tile = "<span>server at work</span><b>77%</b><small>64% for evaluation</small>"
    assert tile in page(tmp_path)  # in 11 seconds


def test_page_needs_no_network(tmp_path):
    write_cell(tmp_path, events=EVENTFUL)
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)[^\"']+", page(tmp_path))


def test_pages_of_a_sweep_share_the_plotting_library(tmp_path):
    sweep = tmp_path / "a sweep"
    for job in ("0", "1"):
        write_cell(sweep / job, events=ROUNDS)
        write_report(sweep / job, figures=False, shared=sweep)
    write_cell(sweep / "lr=1" / "2", events=ROUNDS)
    write_report(sweep / "lr=1" / "2", figures=False, shared=sweep)
    assert {path.name for path in sweep.iterdir()} == {"0", "1", "lr=1", "plotly.min.js"}
    assert (sweep / "plotly.min.js").stat().st_size > 1e6
    for folder, address in (("0", ".."), ("1", ".."), ("lr=1/2", "../..")):
        text = (sweep / folder / PAGE).read_text()
        assert len(text) < 1e6
        assert f'<script src="{address}/plotly.min.js"></script>' in text


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
    head = text[text.index("<header>") : text.index("</header>")]
    assert re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", head) == [
        ("data", "mnist"),
        ("model", "lenet"),
        ("clients", "50, 10 at work"),
        ("partition", "Dirichlet (alpha 0.1), Dirichlet (alpha 0.3)"),
        ("devices", "Uniform (up to 5x slower)"),
        ("seeds", "0, 1"),
    ]
    assert str(tmp_path) not in text
    assert "fl-app 1.2, commit abcdef012," in text


def test_what_clients_said_is_text(tmp_path):
    write_cell(
        tmp_path, events=EVENTFUL, summary={"stopped": "Diverged: <script>alert(1)</script>"}
    )
    text = page(tmp_path)
    assert "<b>bold" not in text
    assert "alert(1)</script>" not in text
    assert "KeyError: &#39;&lt;b&gt;bold" in text


def test_page_of_an_experiment_compares_its_cells(tmp_path):
    for seed, events in enumerate((ASYNCHRONOUS, ASYNCHRONOUS[:9])):
        write_cell(tmp_path / f"fedasync-seed{seed}", events=events, algorithm="fedasync")
    write_cell(tmp_path / "fedavg", events=ROUNDS, summary={"stopped": "seconds"})
    text = page(tmp_path)
    assert "<h1>fedasync</h1>" not in text
    assert "<h1>fedavg, fedasync</h1>" in text
    assert "88.5% <small>&plusmn;&thinsp;4.9</small>" in text
    assert "fedasync <small>2 seeds</small>" in " ".join(text.split())
    assert "Every seed" in text
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "In numbers",
        "Who learns faster",
        "Where it ends",
        "Staleness",
        "Who trained when: fedavg",
        "Who trained when: fedasync-seed0",
        "Summaries and resolved configurations",
    ]


def test_run_that_goes_on_says_so_and_an_empty_one_has_a_page(tmp_path):
    write_cell(tmp_path, events=[dispatch(0.0, 4)], runtime="deployment", algorithm="fedbuff")
    text = page(tmp_path)
    assert "still running" in text
    assert "<small>1 more under way</small>" in text
    (tmp_path / "events.jsonl").write_text("")
    assert "<h1>fedbuff</h1>" in page(tmp_path)


def test_warnings_stand_on_top(tmp_path):
    write_cell(tmp_path, events=ROUNDS, summary={"data": "stand-in", "collapsed": True})
    text = page(tmp_path)
    assert "<b>Not the real data</b> but a stand-in" in text
    assert "<b>Collapsed:</b>" in text
    write_cell(tmp_path, summary={"data": "local", "collapsed": False})
    assert 'class="warning"' not in page(tmp_path)


def test_timeline_says_what_it_leaves_out(tmp_path):
    many = [dispatch(0.0, client) for client in range(100)]
    write_cell(tmp_path, events=many + ROUNDS)
    assert "60 of 100 clients, evenly spread" in page(tmp_path)
    text = page(tmp_path, span=(1.0, 2.0))
    assert "1.0 s to 2.0 s of 6.0 s; --span FROM TO shows another part" in text


def test_span_that_has_no_length_is_refused(tmp_path):
    write_cell(tmp_path, events=ROUNDS)
    with pytest.raises(ValueError, match=r"span=\(2.0, 1.0\) must be two times"):
        write_report(tmp_path, figures=False, span=(2.0, 1.0))


def test_watched_page_reloads_itself_until_the_run_has_ended(tmp_path):
    write_cell(tmp_path, events=ROUNDS[:5])
    pages, naps = [], []

    def sleep(seconds):
        """Meanwhile the run goes on, and the second time it ends."""
        naps.append(seconds)
        pages.append((tmp_path / PAGE).read_text())
        write_cell(tmp_path, events=ROUNDS)
        if len(naps) == 2:
            write_cell(tmp_path, summary={"stopped": "num_versions"})

    watch(tmp_path, every=7.0, sleep=sleep)
    assert naps == [7.0, 7.0]
    assert all('<meta http-equiv="refresh" content="7.0">' in text for text in pages)
    assert "<b>95.0%</b>" not in pages[0]
    assert "<b>95.0%</b>" in pages[1]
    last = (tmp_path / PAGE).read_text()
    assert 'http-equiv="refresh"' not in last
    assert "ended by num_versions" in last
    assert not (tmp_path / "table.csv").exists()


def test_run_that_was_resumed_is_watched_again(tmp_path):
    write_cell(tmp_path, events=ROUNDS, summary={"stopped": "interrupted"})
    os.utime(tmp_path / "summary.json", (0, 0))

    def sleep(seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(tmp_path, every=1.0, sleep=sleep)


def test_watching_at_no_interval_is_refused(tmp_path):
    with pytest.raises(ValueError, match="every=0 must be a finite number above 0"):
        watch(tmp_path, every=0)


def test_page_of_a_run_without_a_test_set_goes_by_what_its_clients_measured(tmp_path):
    order = {"kind": "evaluate_order", "t": 10, "client": 3, "order": 9, "version": 1, "bytes": 8}
    failed = {"kind": "failure", "t": 11, "client": 3, "order": 9, "base_version": 1}
    events = [
        *(dispatch(0, client) for client in range(2)),
        order,
        {**failed, "reason": "evaluation: OSError: no such file"},
        clients_evaluate(12, 10, 1, 0.4, 0.1),
        clients_evaluate(35, 30, 4, 0.8, 0.5),
    ]
    write_cell(tmp_path, events=events, algorithm="fedbuff")
    text = page(tmp_path)
    assert "On the clients" in text
    assert "Clients&#39; accuracy and loss of the global model" in text
    assert "worst decile 50.0%, 4 clients" in text
    assert "evaluate_order, version 1" in text
    assert "evaluation: OSError: no such file" in text


def test_page_shows_who_has_what(tmp_path):
    write_cell(tmp_path, events=EVENTFUL, summary={"stopped": "seconds"}, algorithm="fedbuff")
    rows = [(client, client % 3, 2) for client in range(3000)]
    text = "".join(f"{client},{cats},{dogs}\n" for client, cats, dogs in rows)
    (tmp_path / "partition.csv").write_text(f"client,<cat>,dog\n{text}")
    text = page(tmp_path)
    assert "<h2>Who has what</h2>" in text
    (trace,) = next(f["data"] for f in figures(text) if f["data"][0]["type"] == "heatmap")
    assert trace["y"] == ["&lt;cat&gt;", "dog"]
    assert (len(trace["x"]), trace["x"][0], trace["x"][-1]) == (1000, 0, 2999)
    assert trace["z"] == [[client % 3 for client in trace["x"]], [2] * 1000]


def test_page_of_several_cells_shows_each_partition_once(tmp_path):
    for name, cats in (("fedavg", 1), ("fedbuff", 1), ("wkafl", 2)):
        write_cell(tmp_path / name, events=ASYNCHRONOUS, summary={}, algorithm=name)
        (tmp_path / name / "partition.csv").write_text(f"client,cat\n0,{cats}\n")
    text = page(tmp_path)
    assert [f["data"][0]["z"] for f in figures(text) if f["data"][0]["type"] == "heatmap"] == [
        [[1]], [[2]],
    ]  # fmt: skip
    assert "Cells differ; drawn are those of fedavg, wkafl." in text
