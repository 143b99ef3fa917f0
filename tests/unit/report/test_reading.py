import json
import re

import pytest
from run_folders import (
    ASYNCHRONOUS,
    ROUNDS,
    aggregate,
    arrival,
    dispatch,
    evaluate,
    failure,
    reject,
    write_cell,
)

from fl_app.report.cells import MAX_TROUBLES, Mark, Trouble, Wait
from fl_app.report.reading import MAX_STORY, read_cell, read_run


def orders_of(cell):
    """Of each order: client, start, end, what ended it, version, age, reason."""
    return [
        (o.client, o.start, cell.end(o), o.ended, o.version, o.age, o.reason)
        for o in cell.history.orders
    ]


def evaluations_of(cell):
    return [(e.t, e.accuracy, e.client_updates, e.version, e.loss) for e in cell.evaluations]


def test_synchronous_clients_wait_for_the_slowest(tmp_path):
    write_cell(tmp_path, events=ROUNDS, algorithm="fedavg")
    cell = read_cell(tmp_path)
    assert orders_of(cell) == [
        (0, 0.0, 1.0, "arrival", 0, 0, ""),
        (1, 0.0, 3.0, "arrival", 0, 0, ""),
        (1, 3.0, 6.0, "arrival", 1, 0, ""),
        (0, 3.0, 4.0, "arrival", 1, 0, ""),
    ]
    assert cell.waits == [Wait(0, 1.0, 3.0), Wait(0, 4.0, 6.0)]
    assert cell.aggregations == [3.0, 6.0]
    assert cell.history.ages == {0: 4}
    assert cell.history.client_updates == 4
    assert cell.history.t == 6.0


def test_asynchronous_clients_do_not_wait_and_their_last_orders_stay_open(tmp_path):
    write_cell(tmp_path, events=ASYNCHRONOUS, algorithm="fedasync")
    cell = read_cell(tmp_path)
    assert cell.waits == []
    assert orders_of(cell)[-1] == (0, 2.0, 3.0, "", 2, None, "")
    assert cell.history.ages == {0: 2, 2: 1}
    assert evaluations_of(cell) == [
        (0.0, 0.1, 0, 0, 1.0),
        (2.0, 0.92, 2, 2, 1.0),
        (3.0, 0.85, 3, 3, 1.0),
    ]


def test_place_that_is_refilled_at_once_does_not_wait_for_the_buffer_to_fill(tmp_path):
    events = [
        dispatch(0.0, 0),
        dispatch(0.0, 1),
        arrival(1.0, 0),
        dispatch(1.0, 2),
        arrival(3.0, 1),
        aggregate(3.0, 1, [0, 1], [0, 0]),
    ]
    write_cell(tmp_path, events=events)
    assert read_cell(tmp_path).waits == []


def test_refill_of_a_failed_place_does_not_end_the_waiting_of_others(tmp_path):
    events = [
        dispatch(0.0, 0),
        dispatch(0.0, 1),
        arrival(1.0, 0),
        failure(2.0, 1),
        dispatch(2.0, 2),
        arrival(5.0, 2),
        aggregate(5.0, 1, [0, 2], [0, 0]),
    ]
    write_cell(tmp_path, events=events)
    cell = read_cell(tmp_path)
    assert cell.waits == [Wait(0, 1.0, 5.0)]
    assert (1, 0.0, 2.0, "failure", 0, None, "") in orders_of(cell)


def test_late_and_duplicate_replies_are_counted_and_train_nothing(tmp_path):
    events = [
        dispatch(0.0, 0),
        failure(2.0, 0),
        reject(3.0, client=0, base_version=0),
        reject(3.5),
        dispatch(4.0, 0),
        reject(5.0, client=0, base_version=0),
    ]
    write_cell(tmp_path, events=events)
    cell = read_cell(tmp_path)
    assert orders_of(cell) == [
        (0, 0.0, 2.0, "failure", 0, None, ""),
        (0, 4.0, 5.0, "reject", 0, None, "late"),
    ]
    history = cell.history
    assert (history.failures, history.rejected, history.client_updates) == (1, 3, 0)
    assert history.lost == {0: 2}
    assert cell.marks == [Mark("reject", 3.0, 0, "late"), Mark("reject", 3.5, None, "late")]


def test_late_reply_leaves_the_next_order_of_its_client_alone(tmp_path):
    events = [
        dispatch(0.0, 0, 0),
        failure(2.0, 0, 0),
        dispatch(2.5, 0, 1),
        reject(3.0, client=0, base_version=0),
        arrival(4.0, 0, 1),
    ]
    write_cell(tmp_path, events=events)
    assert [order[1:4] for order in orders_of(read_cell(tmp_path))] == [
        (0.0, 2.0, "failure"),
        (2.5, 4.0, "arrival"),
    ]


def test_evaluation_without_finite_accuracy_is_left_out(tmp_path):
    write_cell(tmp_path, events=[evaluate(0.0, 0, None), evaluate(1.0, 1, 0.3)])
    assert evaluations_of(read_cell(tmp_path)) == [(1.0, 0.3, 0, 1, 1.0)]


@pytest.mark.parametrize("torn", range(1, 90, 11))
def test_log_torn_anywhere_is_read_up_to_there(tmp_path, torn):
    write_cell(tmp_path, events=ASYNCHRONOUS, algorithm="fedasync")
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-torn])
    (tmp_path / "summary.json").write_text('{"algori')
    cell = read_cell(tmp_path)
    whole = len(path.read_text().splitlines()) - 1
    assert cell.summary == {}
    assert len(cell.aggregations) == sum(e["kind"] == "aggregate" for e in ASYNCHRONOUS[:whole])


def test_log_torn_inside_a_character_is_read(tmp_path):
    write_cell(tmp_path, events=ASYNCHRONOUS)
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes() + '{"kind":"failure","reason":"\u00e9'.encode()[:-1])
    assert len(read_cell(tmp_path).evaluations) == 3


def test_run_without_cells_is_one_cell_named_after_its_algorithm(tmp_path):
    write_cell(tmp_path, events=ROUNDS, algorithm="fedbuff", runtime="deployment")
    (cell,) = read_run(tmp_path)
    assert (cell.name, cell.algorithm, cell.on_wall_clock) == ("fedbuff", "fedbuff", True)


def test_cells_come_in_the_order_of_algorithms_then_of_numbers_in_names(tmp_path):
    for name, algorithm in [
        ("mine", "my_own"),
        ("fedbuff-seed10", "fedbuff"),
        ("fedbuff-seed9", "fedbuff"),
        ("slow", "fedavg"),
        ("async", "fedasync"),
    ]:
        write_cell(tmp_path / name, events=ROUNDS, algorithm=algorithm)
    (tmp_path / "figures").mkdir()
    assert [cell.name for cell in read_run(tmp_path)] == [
        "slow",
        "async",
        "fedbuff-seed9",
        "fedbuff-seed10",
        "mine",
    ]


def test_jobs_come_in_the_order_of_the_command_and_cells_in_that_of_their_experiment(tmp_path):
    """Both have wkafl before fedavg, whose place among algorithms is the first one."""
    for job, algorithm in (("10", "fedavg"), ("9", "wkafl")):
        write_cell(tmp_path / "sweep" / job, events=ROUNDS, algorithm=algorithm)
    chosen = "experiment: {only: %s, cells: {fedavg: [], wkafl.2: []}, settings: {b: [], a: []}}"
    for name in ("wkafl.2@a", "wkafl.2@b-seed1", "fedavg@a"):
        for only in ("[wkafl.2, fedavg]", "null"):
            write_cell(tmp_path / only / name, events=ROUNDS)
            (tmp_path / only / name / "config.yaml").write_text(chosen % only)
    folders = {path.name: [cell.folder for cell in read_run(path)] for path in tmp_path.iterdir()}
    assert folders == {
        "sweep": ["9", "10"],
        "[wkafl.2, fedavg]": ["wkafl.2@b-seed1", "wkafl.2@a", "fedavg@a"],
        "null": ["wkafl.2@b-seed1", "fedavg@a", "wkafl.2@a"],
    }


def test_cells_of_an_experiment_that_differ_in_their_seed_share_a_label(tmp_path):
    for name in ("fedavg-seed0", "fedavg-seed12", "fedavg-slow", "seed3"):
        write_cell(tmp_path / name, events=[])
    assert [(cell.name, cell.label) for cell in read_run(tmp_path)] == [
        ("fedavg-seed0", "fedavg"),
        ("fedavg-seed12", "fedavg"),
        ("fedavg-slow", "fedavg-slow"),
        ("seed3", "seed3"),
    ]


def test_cell_that_wrote_only_one_of_its_files_is_a_cell(tmp_path):
    write_cell(tmp_path / "a", summary={"stopped": "interrupted"})
    write_cell(tmp_path / "b", events=[])
    assert [cell.name for cell in read_run(tmp_path)] == ["a", "b"]


def test_folder_without_cells_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=re.escape(f"run_folder={folder} must hold")):
            read_run(folder)


def test_summary_is_kept_as_it_is(tmp_path):
    write_cell(tmp_path, events=[], summary={"bytes_up": 5, "stopped": "seconds"})
    assert read_cell(tmp_path).summary == json.loads('{"bytes_up": 5, "stopped": "seconds"}')


def test_pause_and_refresh_are_moments_of_one_order_whatever_version_its_update_cites(tmp_path):
    events = [
        dispatch(0.0, 7, 0),
        aggregate(1.0, 1, [3], [0]),
        {"kind": "pause", "t": 2.0, "client": 7, "base_version": 0, "progress": 0.25},
        {"kind": "refresh", "t": 2.0, "client": 7, "version": 1},
        arrival(5.0, 7, 1, 0),
    ]
    write_cell(tmp_path, events=events)
    cell = read_cell(tmp_path)
    assert orders_of(cell) == [(7, 0.0, 5.0, "arrival", 0, 0, "")]
    assert cell.marks == [
        Mark("pause", 2.0, 7, "progress 0.25"),
        Mark("refresh", 2.0, 7, "version 1"),
    ]


def test_who_trained_for_clusters_waits_until_they_are_formed(tmp_path):
    clusters = {"version": 0, "client": [0, 1], "cluster": [0, 0]}
    events = [
        dispatch(0.0, 0),
        dispatch(0.0, 1),
        arrival(1.0, 0),
        arrival(3.0, 1),
        {"kind": "cluster", "t": 3.0, **clusters, "dropped": [0, 1]},
        dispatch(3.0, 0),
        dispatch(3.0, 1),
        arrival(4.0, 0),
        {"kind": "cluster", "t": 4.0, **clusters, "dropped": []},
        arrival(6.0, 1),
        aggregate(6.0, 1, [0, 1], [0, 0]),
    ]
    write_cell(tmp_path, events=events)
    cell = read_cell(tmp_path)
    assert cell.waits == [Wait(0, 1.0, 3.0), Wait(0, 4.0, 6.0)]
    assert [mark.kind for mark in cell.marks] == ["cluster", "cluster"]


def test_what_concerns_no_single_client_is_a_mark_of_the_server(tmp_path):
    cluster = {"client": [0, 1, 2], "cluster": [0, 1, 0], "dropped": [1]}
    events = [
        {"kind": "cluster", "t": 1.0, "version": 4, **cluster},
        {"kind": "checkpoint", "t": 2.0, "version": 5},
    ]
    write_cell(tmp_path, events=events)
    assert read_cell(tmp_path).marks == [
        Mark("cluster", 1.0, None, "version 4, clusters of 2, 1 clients"),
        Mark("checkpoint", 2.0, None, "version 5"),
    ]


def test_trouble_is_told_with_what_the_client_did_before(tmp_path):
    events = [
        dispatch(0.0, 5),
        {**arrival(1.0, 5), "loss": 0.123456},
        dispatch(2.0, 5, 3),
        dispatch(2.5, 6, 3),
        {**failure(4.0, 5, 3), "reason": "KeyError: 'x'\nTraceback"},
        reject(9.0),
    ]
    write_cell(tmp_path, events=events)
    cell = read_cell(tmp_path)
    assert list(cell.troubles) == [
        Trouble(
            "failure",
            4.0,
            5,
            3,
            "KeyError: 'x'\nTraceback",
            (
                "0.00 s: order, version 0",
                "1.00 s: arrival on version 0, age 0, loss 0.1235",
                "2.00 s: order, version 3",
            ),
        ),
        Trouble("reject", 9.0, None, None, "late", ()),
    ]
    assert cell.reasons == {("failure", "KeyError: 'x'"): 1, ("reject", "late"): 1}


def test_troubles_beyond_counting_are_counted_and_the_latest_kept(tmp_path):
    number = MAX_TROUBLES + 50
    events = [
        event
        for t in range(number)
        for event in (dispatch(t, 0), {**failure(t, 0), "reason": "boom"})
    ]
    write_cell(tmp_path, events=events)
    cell = read_cell(tmp_path)
    assert (len(cell.troubles), cell.troubles[0].t, cell.troubles[-1].t) == (200, 50, number - 1)
    assert cell.reasons == {("failure", "boom"): number}
    assert len(cell.troubles[-1].story) == MAX_STORY


def test_reports_of_the_strategy_are_series_over_versions(tmp_path):
    events = [
        {**aggregate(1.0, 1, [0, 1], [0, 3]), "weight": [0.5, 0.0], "kept": 2, "stage": "one"},
        {**aggregate(2.0, 2, [0], [1]), "weight": [0.25], "effective_clients": None, "kept": 1},
    ]
    write_cell(tmp_path, events=events)
    cell = read_cell(tmp_path)
    assert cell.reports == {
        "staleness": [(1, 1.5), (2, 1.0)],
        "weight": [(1, 0.25), (2, 0.25)],
        "kept": [(1, 2.0), (2, 1.0)],
    }
    assert cell.history.participation == {0: 2}  # weight 0 is no participation
    assert cell.history.version == 2


def test_configuration_says_what_was_run(tmp_path):
    text = "algorithm: {name: eafl}\ntask: {_target_: fl_app.tasks.digits.digits}\n"
    write_cell(tmp_path, events=[])
    (tmp_path / "config.yaml").write_text(text + "experiment: {name: quick}\n")
    cell = read_cell(tmp_path)
    assert (cell.algorithm, cell.task, cell.experiment) == ("eafl", "digits", "quick")
    assert cell.config.startswith(text)
    images = "task: {_target_: fl_app.tasks.images.image_task, data: mnist}\n"
    (tmp_path / "config.yaml").write_text(images)
    assert read_cell(tmp_path).task == "mnist"


def test_a_damaged_configuration_is_named(tmp_path):
    write_cell(tmp_path, events=ROUNDS, algorithm="fedavg")
    (tmp_path / "config.yaml").write_text("seed: [")
    with pytest.raises(ValueError, match=r"config\.yaml is damaged: "):
        read_cell(tmp_path)
