"""The page of a search shows what its runs are judged by."""

import json
from pathlib import Path

from fl_app.search.page import write_page
from fl_app.search.results import Found
from fl_app.search.settings import Settings
from fl_app.search.space import parse
from fl_app.search.study import CellStudy, open_journal


def test_learning_curves_are_of_the_score(tmp_path: Path) -> None:
    """Of a killed run, whose table is empty, there is none."""
    space = parse(["x=interval(0.0,1.0)"])
    study = CellStudy(open_journal(tmp_path / "study.jsonl"), "cell", space, [], 2, seed=0, rungs=0)
    runs = tmp_path / "runs" / "cell"
    while (following := study.next()) is not None:
        trial = following[0]
        run = runs / str(trial.number) / "seed0"
        run.mkdir(parents=True)
        if trial.number:
            (run / "metrics.csv").touch()
            study.fail(trial, "killed")
            continue
        (run / "metrics.csv").write_text("version,t,client_updates,rmse\n0,0,0,30\n1,2,10,7.5\n")
        summary = {"score": "rmse", "higher_is_better": False, "final_rmse": 7.5}
        (run / "summary.json").write_text(json.dumps(summary))
        study.report(trial, 0, {0: -7.5})
    found = Found("cell", "fedbuff", space, study, runs, ("max_updates", 10))
    write_page([found], Settings(trials=2, updates=10), tmp_path / "search.html")
    figures = (tmp_path / "search.html").read_text().partition('id="figures">')[2]
    assert '"y":[30.0,7.5],"name":"trial 0"' in figures
    assert '"title":{"text":"rmse"' in figures
    assert '"name":"trial 1"' not in figures
