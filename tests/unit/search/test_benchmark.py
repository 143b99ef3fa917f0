"""The page of a benchmark: ranks, paired differences, intervals, and what follows from them."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from fl_app.search.benchmark import PAGE, advice, main, markdown, parts_of
from fl_app.search.judged import Benchmark, interval, p_value, read, write

DOCS = Path(__file__).resolve().parents[3] / "docs"
CONFIG = """\
partition: {{_target_: {partition}, labels: [1]}}
experiment: {{settings: {{n10-iid: [], n10-slow: []}}}}
"""
# Accuracies of seeds 5, 6 and 7 in each setting.
SCORES = {
    "a@n10-iid": (0.80, 0.82, 0.84),
    "b@n10-iid": (0.79, 0.82, 0.82),  # -1, 0, -2 points of a
    "c@n10-iid": (0.60, 0.62, 0.64),
    "a@n10-slow": (0.50, 0.55, 0.60),
    "b@n10-slow": (0.70, 0.75, 0.80),
    "c@n10-slow": (0.40, 0.45, 0.50),
}
SECONDS = {"b@n10-slow": 31.0}  # of the others: 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, accuracies in SCORES.items():
        for seed, accuracy in zip((5, 6, 7), accuracies, strict=True):
            run = tmp_path / "test" / f"{name}-seed{seed}"
            run.mkdir(parents=True)
            partition = "x.SlowLabels" if "slow" in name else "x.Iid"
            (run / "config.yaml").write_text(CONFIG.format(partition=partition))
            summary = {"last10_accuracy": accuracy, "seed": seed, "stopped": "updates"}
            summary |= {"virtual_seconds": SECONDS.get(name, 20.0), "recall": [1.0, accuracy]}
            (run / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_intervals_are_those_of_student() -> None:
    """Mean 2, deviation 1, three values: 2 +- 4.3027 / sqrt(3)."""
    found = interval([1.0, 2.0, 3.0])
    assert found == pytest.approx((2.0, 2 - 2.48414, 2 + 2.48414), abs=1e-4)
    assert found.text(1, "{:.1f}") == "2.0 [-0.5, 4.5]"


def test_differences_are_paired_by_seed(folder: Path) -> None:
    """b is 1, 0 and 2 points behind a; c is 20 behind with every seed."""
    best, others = read(folder / "test").behind_best(["n10-iid"])
    assert best == "a"
    assert list(others) == ["b", "c"]
    assert others["b"] == pytest.approx((-0.01, -0.01 - 0.0248414, -0.01 + 0.0248414), abs=1e-6)
    assert others["c"] == pytest.approx((-0.2, -0.2, -0.2))


def test_ranks_are_means_over_settings(folder: Path) -> None:
    """In n10-iid with seed 6, a and b share the first place."""
    ranks = read(folder / "test").ranks()
    assert list(ranks) == ["b", "a", "c"]
    of_seeds = [(2 + 1) / 2, (1.5 + 1) / 2, (2 + 1) / 2]
    assert ranks["b"] == pytest.approx(interval(of_seeds))
    assert ranks["c"] == pytest.approx((3, 3, 3))


@pytest.mark.parametrize(("seconds", "late"), [(30.0, []), (30.5, ["b"])])
def test_methods_are_late_that_need_half_as_much_time_again_in_one_setting(
    seconds: float, late: list[str], folder: Path
) -> None:
    for path in folder.glob("test/b@n10-slow-*/summary.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "virtual_seconds": seconds}))
    found = read(folder / "test")
    assert found.late(["n10-iid"]) == []
    assert found.late(found.settings) == late
    assert list(found.ranks(late)) == (["a", "c"] if late else ["b", "a", "c"])


def test_advice_follows_from_the_intervals(folder: Path) -> None:
    rows = {row[0]: row for row in advice(read(folder / "test"))}
    assert list(rows) == [
        *("all settings", "all settings, in time", "n10", "n10, in time"),
        *("iid", "slow", "slow, in time"),
    ]
    assert rows["iid"][1] == "a"
    assert rows["iid"][3] == "b -1.0 [-3.5, +1.5]"
    assert rows["iid"][4:] == ["c -20.0 [-20.0, -20.0]", "1 of 2"]
    assert rows["slow"][1] == "b"
    assert rows["slow"][3] == "none"
    assert rows["slow"][4] == "a -20.0 [-20.0, -20.0]"
    assert rows["slow, in time"][1] == "a"
    assert rows["slow, in time"][4] == "c -10.0 [-10.0, -10.0]"


def test_a_method_without_all_results_has_no_rank_and_is_told(folder: Path) -> None:
    (folder / "test" / "a@n10-iid-seed6" / "summary.json").unlink()
    found = read(folder / "test")
    assert found.missing == ["a@n10-iid-seed6"]
    assert list(found.ranks()) == ["b", "c"]
    assert found.behind_best(["n10-iid"])[0] == "b"


def test_runs_that_never_began_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Judging was interrupted: seed 8 is of c alone, and a lacks seed 6, in n10-iid."""
    runs = folder / "test"
    shutil.copytree(runs / "c@n10-iid-seed5", runs / "c@n10-iid-seed8")
    summary = json.loads((runs / "c@n10-iid-seed8" / "summary.json").read_text())
    (runs / "c@n10-iid-seed8" / "summary.json").write_text(json.dumps({**summary, "seed": 8}))
    shutil.rmtree(runs / "a@n10-iid-seed6")
    lacking = ["a@n10-iid-seed6", "a@n10-iid-seed8", "b@n10-iid-seed8"]
    assert read(folder).missing == lacking
    write(read(folder), folder / "judged.csv")
    assert read(folder / "judged.csv").missing == lacking
    main([str(folder), "--markdown"])
    printed = capsys.readouterr().out
    assert "3 runs have no result (the last table). A method that lacks one in a" in printed
    assert all(f"| {name} | no result |" in printed for name in lacking)


def test_a_file_with_a_run_twice_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of two files that were joined by hand; a mean of both would be shown."""
    scores = read(folder).scores
    write(Benchmark(pd.concat([scores, scores[:1]]), []), folder / "judged.csv")
    with pytest.raises(SystemExit):
        main([str(folder / "judged.csv")])
    assert "one with one run of a@n10-iid, seed 5: it has several" in capsys.readouterr().err


def test_ranks_are_among_the_methods_that_have_one(folder: Path) -> None:
    """Without a in n10-slow, b is ahead of c in both settings, although a is ahead of b in one."""
    for path in folder.glob("test/a@n10-slow-*/summary.json"):
        path.unlink()
    assert {name: rank.mean for name, rank in read(folder).ranks().items()} == {"b": 1, "c": 2}


def test_a_mean_over_settings_has_the_seeds_of_all_of_them(folder: Path) -> None:
    """Seed 8 is in n10-iid alone, where all methods have 0.1."""
    scores = read(folder).scores
    extra = scores[(scores.seed == 5) & (scores.setting == "n10-iid")]
    more = Benchmark(pd.concat([scores, extra.assign(seed=8, accuracy=0.1)]), [])
    assert list(more.table(more.settings).index) == [5, 6, 7]
    assert list(more.table(["n10-iid"]).index) == [5, 6, 7, 8]
    assert more.ranks() == read(folder).ranks()


def test_a_run_that_lies_there_twice_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "test" / "a@n10-iid-seed5", folder / "test" / "a@n10-iid")
    with pytest.raises(SystemExit):
        main([str(folder)])
    assert "one with one run of a@n10-iid, seed 5: it has several" in capsys.readouterr().err


def test_where_each_method_is_late_somewhere_nothing_is_chosen_in_time(folder: Path) -> None:
    found = read(folder).without(["b"])
    late = (found.scores.method == "a") & (found.scores.setting == "n10-iid")
    late |= (found.scores.method == "c") & (found.scores.setting == "n10-slow")
    slow = Benchmark(found.scores.assign(seconds=found.scores.seconds.mask(late, 100.0)), [])
    assert slow.late(slow.settings) == ["a", "c"]
    assert [row[0] for row in advice(slow)][:2] == ["all settings", "n10"]


def test_the_score_in_time_is_of_the_methods_in_time(folder: Path) -> None:
    """The late b has a fourth seed in n10-slow."""
    scores = read(folder).scores
    extra = scores[(scores.seed == 5) & (scores.setting == "n10-slow") & (scores.method == "b")]
    rows = advice(Benchmark(pd.concat([scores, extra.assign(seed=8)]), []))
    assert ["slow, in time", "a"] in [row[:2] for row in rows]


@pytest.mark.parametrize("pattern", ["*-seed[67]", "[ab]@n10-slow-seed5", "*@n10-iid-seed[67]"])
def test_results_that_nothing_can_be_said_of_are_refused(
    pattern: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = "c@n10-slow-seed6" if pattern.startswith("[") else ""
    for path in folder.glob("test/*/summary.json"):
        if path.parent.match(pattern) or path.parent.name == gone:
            path.unlink()
    with pytest.raises(SystemExit):
        main([str(folder)])
    told = "must be settings in which a method has a result with each of several seeds"
    assert told in capsys.readouterr().err
    assert not (folder / PAGE).exists()


def test_methods_are_compared_with_a_named_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(folder), "--markdown", "--against", "c"])
    printed = capsys.readouterr().out
    assert "| method | accuracy, % | seconds | ahead of the best, points | ahead of c |" in printed
    row = "| a | 82.0 [77.0, 87.0] | 20 | - | +20.0 [+20.0, +20.0] |"
    assert row in printed
    assert "| c | 62.0 [57.0, 67.0] | 20 | -20.0 [-20.0, -20.0] | - |" in printed
    with pytest.raises(SystemExit):
        main([str(folder), "--against", "d"])
    assert "--against" in capsys.readouterr().err


def test_methods_and_settings_can_be_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a and the other setting, b is 19, 20 and 18 points ahead of c."""
    (folder / "test" / "a@n10-iid-seed6" / "summary.json").unlink()
    main([str(folder), "--markdown"])
    assert "| a@n10-iid-seed6 | no result |" in capsys.readouterr().out
    main([str(folder), "--markdown", "--without", "a", "n10-slow"])
    printed = capsys.readouterr().out
    assert "| c | 62.0 [57.0, 67.0] | 20 | -19.0 [-21.5, -16.5] |" in printed
    assert "n10-slow" not in printed
    assert "no result" not in printed
    with pytest.raises(SystemExit):
        main([str(folder), "--without", "d"])
    assert "--without" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(folder), "--without", "n10-iid", "n10-slow"])
    assert "none is left" in capsys.readouterr().err


def test_orders_of_settings_agree_by_tau(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The orders a, b, c and b, a, c: of three pairs two agree and one does not, so tau is 1/3.

    With seed 6, a and b tie in n10-iid: two pairs of the others agree, 2 / sqrt(2 * 3).
    """
    found = read(folder)
    assert found.agreement("n10-slow", found, "n10-slow") == pytest.approx((1, 1, 1))
    tau = found.agreement("n10-iid", found, "n10-slow")
    assert tau == pytest.approx(interval([1 / 3, 2 / 6**0.5, 1 / 3]))
    main([str(folder), "--csv", str(folder / "judged.csv")])
    main([str(folder), "--markdown", "--order-of", str(folder / "judged.csv")])
    printed = capsys.readouterr().out
    assert "## How far the orders agree" in printed
    assert "| n10-slow | 0.49 [-0.20, 1.19] | 1.00 [1.00, 1.00] | 1.00 |" in printed
    assert "| n10-slow there | 0.49 [-0.20, 1.19] | - | 1.00 |" in printed
    main([str(folder), "--order-of", str(folder / "judged.csv")])
    assert "How far the orders agree" in (folder / PAGE).read_text()


def test_orders_of_seeds_agree_by_tau(folder: Path) -> None:
    """In n10-iid a is first with two seeds and ties with b with seed 6: tau is 2 / sqrt(6) or 1."""
    found = read(folder)
    tau = found.agreement_of_seeds("n10-iid", ["a", "b", "c"])
    assert tau == pytest.approx((1 + 2 * 2 / 6**0.5) / 3)
    assert found.agreement_of_seeds("n10-iid", ["a", "c"]) == 1


def test_holm_s_correction_is_for_all_comparisons_together() -> None:
    """Of differences d the t is mean / (deviation / sqrt(3)), with two degrees of freedom.

    Behind best: b by 1, 2, 3 points (t = 3.464, p = 0.0742), c by 4, 5, 5 (t = 14, p = 0.0051), d
    by 5, 6, 8.5 (t = 6.24, p = 0.0247). Holm's limits for the ordered p are 0.05 / 3, 0.05 / 2 and
    0.05: c and d are separated, and b is not. With one more equal to b, d's limit is 0.05 / 3, and
    d is not either.
    """
    behind = {"best": (0, 0, 0), "b": (1, 2, 3), "c": (4, 5, 5), "d": (5, 6, 8.5)}
    assert p_value([1, 2, 3]) == pytest.approx(0.0742, abs=1e-4)
    assert p_value([4, 5, 5]) == pytest.approx(0.0051, abs=1e-4)
    assert p_value([5, 6, 8.5]) == pytest.approx(0.0247, abs=1e-4)
    assert (p_value([1, 1]), p_value([0, 0])) == (0, 1)
    for more, left in (({}, 1), ({"e": (1, 2, 3)}, 3)):
        runs = [
            {"method": name, "setting": "s", "seed": seed, "accuracy": 0.9 - points / 100}
            for name, values in {**behind, **more}.items()
            for seed, points in enumerate(values)
        ]
        assert Benchmark(pd.DataFrame(runs), []).not_separated(["s"]) == left


def test_searched_values_stand_beside_the_results(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come from the search's file, and stay in the CSV file."""
    best = ["algorithm.strategy.server_lr=0.0277778", "algorithm.strategy.num_clusters=5"]
    text = json.dumps({"seeds": [0], "cells": {"b@n10-iid": best, "c@n10-iid": None}})
    (folder / "best.yaml").write_text(text)
    main([str(folder), "--csv", str(folder / "judged.csv")])
    for source in (folder, folder / "judged.csv"):
        main([str(source), "--markdown"])
        printed = capsys.readouterr().out
        assert "| -1.0 [-3.5, +1.5] | server_lr=0.0278 num_clusters=5 |" in printed
        assert "| c | 62.0 [57.0, 67.0] | 20 | -20.0 [-20.0, -20.0] | - |" in printed
        assert printed.count("searched values") == 1


@pytest.mark.parametrize("gone", ["seed [67]", "method [ab]"])
def test_orders_are_compared_of_shared_methods_and_seeds(
    gone: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read(folder)
    column, pattern = gone.split()
    out = found.scores[column].astype(str).str.fullmatch(pattern)
    write(Benchmark(found.scores[~out], []), folder / "fewer.csv")
    with pytest.raises(SystemExit):
        main([str(folder), "--markdown", "--order-of", str(folder / "fewer.csv")])
    assert "at least three methods and two seeds" in capsys.readouterr().err


def test_an_order_in_which_all_tie_agrees_with_none(folder: Path) -> None:
    found = read(folder)
    level = Benchmark(found.scores.assign(accuracy=0.5), [])
    assert found.agreement("n10-iid", level, "n10-iid").text() == "+nan [+nan, +nan]"


def test_one_command_writes_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "test" / "c@n10-iid-seed5" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "stopped": "Diverged: not finite"}))
    main([str(folder)])
    assert capsys.readouterr().out == f"page: {folder / PAGE}\n"
    page = (folder / PAGE).read_text()
    for text in ("What to choose when", "Mean rank", "recall of the slow labels", "Diverged: not"):
        assert text in page


def test_the_page_can_be_rebuilt_from_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    path = folder / "test" / "c@n10-iid-seed5" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "stopped": "Diverged: not finite"}))
    main([str(folder), "--markdown", "--against", "b"])
    from_runs = capsys.readouterr().out
    assert "Diverged: not finite" in from_runs
    main([str(folder), "--csv", str(folder / "judged.csv")])
    assert len((folder / "judged.csv").read_text().splitlines()) == 1 + 18
    main([str(folder / "judged.csv"), "--markdown", "--against", "b"])
    assert capsys.readouterr().out == from_runs
    main([str(folder / "judged.csv")])
    assert "Diverged: not finite" in (folder / "outputs" / PAGE).read_text()


def test_a_file_tells_which_runs_it_lacks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "test" / "a@n10-iid-seed6" / "summary.json").unlink()
    main([str(folder), "--csv", str(folder / "judged.csv")])
    assert "lacks runs without a result: a@n10-iid-seed6" in capsys.readouterr().err


HEADER = "method,setting,seed,accuracy,seconds,recall,median_staleness,p90_staleness,max_staleness"


@pytest.mark.parametrize("text", ["", "method,accuracy\na,0.5\n", f"{HEADER},stopped\n"])
def test_a_file_without_judged_runs_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.csv").write_text(text)
    with pytest.raises(SystemExit):
        main([str(tmp_path / "other.csv")])
    assert "other.csv" in capsys.readouterr().err


def test_the_tables_of_the_docs_are_those_of_the_judged_runs() -> None:
    against = ["cana-full", "fedhist-average", "fedavg_k"]
    tables = markdown(parts_of(read(DOCS / "benchmark.csv"), against))
    tables += markdown(parts_of(read(DOCS / "benchmark_networks.csv")))
    choice = (DOCS / "benchmark.md").read_text().partition("## A mean of the versions")[0]
    accuracies = (DOCS / "benchmark_tables.md").read_text()
    shown = re.findall(r"^\|.* \[[-+]?\d.*$", choice + accuracies, re.MULTILINE)
    assert len(shown) == 8 + 39 + 13  # groups of settings, methods, methods with networks
    assert set(shown) <= set(tables.splitlines())


def test_ages_stand_beside_the_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of methods whose runs have them; the means over the seeds 5, 6 and 7."""
    for path in folder.glob("test/a@n10-iid-*/summary.json"):
        summary = json.loads(path.read_text())
        ages = {"median_staleness": 4, "p90_staleness": 20, "max_staleness": 60 + summary["seed"]}
        path.write_text(json.dumps({**summary, **ages}))
    main([str(folder), "--markdown"])
    printed = capsys.readouterr().out
    assert "| a | 82.0 [77.0, 87.0] | 20 | - | 4, 20, 67 |" in printed  # the largest of all
    assert "| b | 81.0 [76.7, 85.3] | 20 | -1.0 [-3.5, +1.5] | - |" in printed
    assert printed.count("ages: median") == 1


def test_searches_of_single_settings_make_one_page(folder: Path) -> None:
    apart = folder.parent / "apart"
    for setting in ("n10-iid", "n10-slow"):
        (apart / setting / "test").mkdir(parents=True)
        for run in (folder / "test").glob(f"*@{setting}-*"):
            run.rename(apart / setting / "test" / run.name)
    assert read(apart).settings == ["n10-iid", "n10-slow"]
    assert list(read(apart).ranks()) == ["b", "a", "c"]


def test_the_tables_can_be_had_in_markdown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(folder), "--markdown"])
    printed = capsys.readouterr().out
    assert (
        "| iid | a | 82.0 [77.0, 87.0] | b -1.0 [-3.5, +1.5] | c -20.0 [-20.0, -20.0] | 1 of 2 |"
        in printed
    )
    # b's ranks are 1.5, 1.25 and 1.5; it is late in n10-slow.
    assert "| b | 1.4 [1.1, 1.8] | - | 81.0 [76.7, 85.3] | 75.0 [62.6, 87.4] |" in printed
    assert not (folder / PAGE).exists()


def test_folders_without_results_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "must be the test folder of a search over settings" in capsys.readouterr().err
