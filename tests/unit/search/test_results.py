"""The score of a run, of which a search looks for the highest."""

from fl_app.search.results import score_of


def test_a_score_is_the_higher_the_better() -> None:
    share = {"score": "accuracy", "higher_is_better": True, "final_accuracy": 0.5}
    assert score_of(share, "final") == 0.5
    error = {"score": "rmse", "higher_is_better": False, "final_rmse": 2.0, "best_rmse": 1.5}
    assert (score_of(error, "final"), score_of(error, "best")) == (-2.0, -1.5)


def test_a_run_without_evaluations_has_no_score() -> None:
    assert score_of({"score": None, "stopped": "interrupted"}, "final") is None
    assert score_of({"score": "accuracy", "higher_is_better": True}, "last10") is None
