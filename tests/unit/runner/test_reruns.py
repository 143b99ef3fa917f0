"""Commands that run again in the folder of an experiment: what stays, and what would be mixed."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from configs import composed
from hydra import initialize_config_dir

from fl_app.cli import CONF
from fl_app.runner.jobs import Ended, Job, Plan, carry_out
from fl_app.runner.run import run_cells
from fl_app.runner.validate import checked_cells

WORDS = ("experiment=quickstart", "experiment.only=[fedbuff]", "runtime.workers=0")


def ran(folder: Path, *words: str) -> list[str]:
    """Run 20 updates with each seed; the runs that the report then shows."""
    words = (*WORDS, "max_updates=20", *words)
    config = composed(*words)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cells = checked_cells(config, words)
    plans = {name: Plan(cell, words) for name, cell in cells.items()}
    parallel = config.experiment.parallel
    run_cells(plans, folder, 0.9, parallel=parallel, show=False, figures=False)
    return sorted(path.parent.name for path in folder.glob("*/summary.json"))


def test_further_seeds_of_a_cell_join_its_means(tmp_path: Path) -> None:
    ran(tmp_path, "experiment.seeds=[0,1]")
    assert len(ran(tmp_path, "experiment.seeds=[2,3]", "resume=auto")) == 4


def test_a_seed_is_in_a_mean_once(tmp_path: Path) -> None:
    """With one seed, the folder of a cell has the cell's name, with several it has the seed's."""
    ran(tmp_path, "experiment.seeds=[0]")
    with pytest.raises(ValueError, match=r"/fedbuff is a run of a cell with another configuration"):
        ran(tmp_path, "experiment.seeds=[0,1]", "resume=auto")
    assert [*tmp_path.glob("*/summary.json")] == [tmp_path / "fedbuff" / "summary.json"]
    assert len(ran(tmp_path, "experiment.seeds=[0,1]", "overwrite=true")) == 2


@pytest.mark.slow
def test_a_mean_has_runs_of_one_configuration(tmp_path: Path) -> None:
    """Those of the seeds before had another rate, or another length."""
    ran(tmp_path, "experiment.seeds=[0,1,2]")
    for word in ("algorithm.client.local_lr=0.001", "max_updates=40"):
        assert len(ran(tmp_path, "experiment.seeds=[0,1,2]", "overwrite=true")) == 3
        with pytest.raises(ValueError, match=r"/fedbuff-seed0 is a run of a cell with another"):
            ran(tmp_path, "experiment.seeds=[3,4]", word, "resume=auto")
        assert len(ran(tmp_path, "experiment.seeds=[3,4]", word, "overwrite=true")) == 2


def test_what_is_overwritten_is_gone_also_where_the_first_cell_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder held a single run, which the report would show in place of the cells."""
    words = ("algorithm=fedbuff", "task=digits", "max_updates=20", "runtime.workers=0")
    run_cells({"": Plan(composed(*words), words)}, tmp_path, 0.9, show=False, figures=False)
    assert (tmp_path / "summary.json").exists()

    def first_is_refused(jobs: deque[Job], *_: object, **__: object) -> Iterator[tuple[Job, Ended]]:
        yield jobs.popleft(), Ended(refused=ValueError("its data do not fit"))
        yield from carry_out(jobs, show=False)

    monkeypatch.setattr("fl_app.runner.run.carry_out", first_is_refused)
    only = "experiment.only=[fedbuff,wkafl]"
    assert ran(tmp_path, only, "experiment.parallel=2", "overwrite=true") == ["wkafl"]
    assert not (tmp_path / "summary.json").exists()


def test_a_run_without_training_is_another_run(tmp_path: Path) -> None:
    ran(tmp_path, "runtime.train=false")
    for end in ("max_updates=20", "max_updates=40"):
        with pytest.raises(ValueError, match=r"another configuration \(runtime\.train"):
            ran(tmp_path, end, "resume=auto")
