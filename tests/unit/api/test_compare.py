"""Comparisons from Python: the files of an experiment, and their numbers."""

from statistics import fmean, stdev

import pytest
from configs import composed

import fl_app
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.client.build import build_task

SMALL = (
    *("num_versions=2", "eval_every=1", "runtime.workers=0"),
    *("algorithm.client.local_steps=1", "algorithm.client.batch_size=4"),
)


@pytest.fixture(scope="module")
def task():
    return build_task(composed("num_clients=12", "partition=iid"))


@pytest.fixture(scope="module")
def comparison(task, tmp_path_factory):
    return fl_app.compare(
        {
            "mine": [FedBuff(server_lr=0.5), "algorithm.schedule.buffer_size=3", "num_versions=3"],
            "fedasync": "algorithm=fedasync",
        },
        *SMALL,
        seeds=[0, 1],
        task=task,
        output=tmp_path_factory.mktemp("comparison") / "mine",
        progress=False,
    )


@pytest.mark.slow  # draws figures
def test_the_folder_is_that_of_an_experiment(comparison):
    folder = comparison.folder
    cells = {"fedasync-seed0", "fedasync-seed1", "mine-seed0", "mine-seed1"}
    assert {path.name for path in folder.iterdir()} == {
        *cells,
        *("table.csv", "report.html", "figures"),
    }
    assert {path.stem for path in (folder / "figures").glob("*.png")} >= {"accuracy", "overview"}
    assert fl_app.Comparison(folder).table.equals(comparison.table)


@pytest.mark.slow  # draws figures
def test_the_table_has_mean_and_spread_over_the_seeds(comparison):
    table = comparison.table
    assert table.index.tolist() == ["mine", "fedasync"]  # as they were given
    for name, results in comparison.results.items():
        accuracies = [result.summary["final_accuracy"] for result in results]
        assert len(accuracies) == table.loc[name, "seeds"] == 2
        assert table.loc[name, "final_accuracy"] == pytest.approx(fmean(accuracies))
        assert table.loc[name, "final_accuracy_std"] == pytest.approx(stdev(accuracies))
    assert table["client_updates"].tolist() == [9, 2]  # what a run says of itself wins
    assert table["seconds_to_target"].isna().all()


@pytest.mark.slow  # draws figures
def test_a_notebook_shows_a_table_and_the_curves(comparison):
    html = comparison._repr_html_()
    assert "<th>acc. final</th>" in html
    assert " ±" in html
    assert "Unequal work" in html
    assert '<img src="data:image/png;base64,' in html
    assert "fedasync (2 seeds): " in str(comparison.plot().chart.to_dict())
    assert "fedasync" in repr(comparison)


@pytest.mark.slow  # draws figures
def test_a_run_that_fails_is_told_and_the_others_run(task, tmp_path):
    name = "algorithm.strategy.server_lr"
    cells = {"bad": f"{name}=1e30", "good": f"{name}=1"}
    with pytest.warns(UserWarning, match=r"^bad: (Diverged|Stalled): "):
        comparison = fl_app.compare(
            cells, *SMALL, "num_versions=6", task=task, output=tmp_path, progress=False
        )
    stopped = comparison.table["stopped"]
    assert stopped["bad"].startswith(("Diverged", "Stalled"))
    assert stopped["good"] == "num_versions"


@pytest.mark.parametrize(
    ("cells", "keywords", "message"),
    [
        ({}, {}, r"^cells=\{\} must be at least one"),
        ({"a": "num_versions=2"}, {"seeds": []}, r"^seeds=\[\] must be at least one"),
        ({"a": "num_versions=2"}, {"seeds": [1, 1]}, r"^seeds=\[1, 1\] must be"),
        ({"a": "seed=3"}, {}, r"^a: seed=3 has no effect here: give the seeds as seeds="),
        ({"a/b": "num_versions=2"}, {}, r"^cells='a/b' must be the name of a folder"),
        ({"7": "num_versions=2"}, {}, r"^cells='7' must be the name of a folder, and no number"),
        ({"a": "num_versions=2", "b": "algorithm=x"}, {}, r"^b: algorithm=x does not exist"),
    ],
)
def test_bad_comparisons_are_refused_before_anything_runs(cells, keywords, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fl_app.compare(cells, output=tmp_path / "folder", progress=False, **keywords)
    assert not (tmp_path / "folder").exists()


def test_runs_of_an_earlier_comparison_are_not_in_the_means(task, tmp_path):
    (tmp_path / "a-seed2").mkdir()
    (tmp_path / "a-seed2" / "summary.json").write_text("{}")
    (tmp_path / "a-seed2" / "config.yaml").write_text("{}")
    (tmp_path / "a-seed2" / "events.jsonl").write_text("")
    with pytest.raises(ValueError, match="a folder without other runs; it holds a-seed2"):
        fl_app.compare(
            {"a": []}, *SMALL, "overwrite=true", seeds=[0, 1], task=task, output=tmp_path
        )
    assert [path.name for path in tmp_path.iterdir()] == ["a-seed2"]
