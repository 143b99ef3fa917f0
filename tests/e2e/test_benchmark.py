"""`python -m fl_app.benchmark` from the class to the page, and again."""

import json

import pandas as pd
import pytest

from fl_app.benchmark.__main__ import main

TINY = [
    *("task=digits", "task.model=logistic", "num_clients=10", "experiment.report_accuracy=0.2"),
    *("max_updates=30", "num_versions=30", "eval_every=1"),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_strategy_of_flower_is_scored_and_its_page_rebuilt_by_one_command(
    tmp_path, capsys, monkeypatch
):
    target = "examples.fedsasync.FedSaSync"
    words = [target, "algorithm.schedule.buffer_size=4", "--quick", "--peers", "fedbuff"]
    words += ["--folder", str(tmp_path / "one"), "--parallel", "1", "--common", *TINY]
    assert main(words) == 0
    folder = tmp_path / "one"
    trials = pd.read_csv(folder / "search" / "trials.csv")
    assert trials.groupby("cell").size().to_dict() == {
        "entry-FedSaSync@n10-dir0.3": 3,
        "fedbuff@n10-dir0.3": 3,
    }
    assert set(trials[trials.cell == "fedbuff@n10-dir0.3"].state) == {"COMPLETE"}
    page = (folder / "page.md").read_text()
    assert "entry-FedSaSync is number" in page
    assert "`algorithm.client.local_lr=tag(log,interval(0.00185,0.45))`" in page
    assert len(json.loads((folder / "results.json").read_text())["runs"]) == 2 * 3
    assert capsys.readouterr().out.count("holds") == 4

    (folder / "page.md").unlink()
    monkeypatch.setattr("fl_app.runner.run._run", None)  # nothing may run
    assert main(words) == 0
    assert (folder / "page.md").read_text() == page

    capsys.readouterr()
    assert main([*words, "eval_every=2"]) == 2  # other runs in the same folder
    assert "--folder=" in capsys.readouterr().err


def test_what_is_refused_is_told(tmp_path, capsys):
    for words, told in [
        (["fedhits"], "did you mean fedhist"),
        (["fedbuff", "algorithm.strategy.server_rl=1"], "server_rl"),
        (["fedbuff", "--settings", "n7"], "experiment.only names 'fedbuff@n7'"),
    ]:
        assert main([*words, "--folder", str(tmp_path / "one")]) == 2
        assert told in capsys.readouterr().err
