"""Run folders and histories made by hand, for the tests of the report."""

import json
from collections import defaultdict
from itertools import count

from fl_app.record.history import Evaluation, History, OrderRecord


def write_cell(folder, *, events=None, summary=None, algorithm=None, runtime="inprocess"):
    """Write those files of a cell that are given; an interrupted run lacks some."""
    folder.mkdir(parents=True, exist_ok=True)
    if algorithm:
        config = f"algorithm:\n  name: {algorithm}\nruntime:\n  name: {runtime}\n"
        (folder / "config.yaml").write_text(config)
    if events is not None:
        lines = (json.dumps(event) + "\n" for event in numbered(events))
        (folder / "events.jsonl").write_text("".join(lines))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))


def numbered(events):
    """The events with the numbers of their orders, by client and, if it is told, version."""
    last, given, waiting, numbers = {}, {}, defaultdict(list), count()
    for event in events:
        kind, client = event["kind"], event.get("client")
        if "order" in event or client is None:
            yield event
            continue
        if kind == "dispatch":
            last[client] = given[client, event["version"]] = next(numbers)
        if kind in ("aggregate", "cluster"):
            order = [(waiting[each] or [-1]).pop(0) for each in event.get("dropped", client)]
        elif kind == "reject":
            order = given.get((client, event["base_version"]), last.get(client))
        else:
            order = last[client]
        if kind == "arrival":
            waiting[client].append(order)
        yield {**event, "order": order}


def history_of(orders=(), evaluations=(), t=100.0, *, each=10, **counts):
    """A history of orders (client, start, end) that arrived, and of evaluations (t, accuracy).

    From one evaluation to the next there are a version and `each` client updates.
    """
    history = History(keep_orders=True)
    history.t = t
    history.orders = [
        OrderRecord(n, client, 0, 0, start, end=end, ended="arrival")
        for n, (client, start, end) in enumerate(orders)
    ]
    history.server_evaluations = [
        Evaluation(n, t, each * n, {"accuracy": accuracy, "loss": 1 - accuracy})
        for n, (t, accuracy) in enumerate(evaluations)
    ]
    vars(history).update(counts)
    return history


def dispatch(t, client, version=0):
    return {"kind": "dispatch", "t": t, "client": client, "version": version}


def arrival(t, client, base_version=0, age=0):
    return {"kind": "arrival", "t": t, "client": client, "base_version": base_version, "age": age}


def failure(t, client, base_version=0):
    return {"kind": "failure", "t": t, "client": client, "base_version": base_version}


def reject(t, **story):
    return {"kind": "reject", "t": t, **story, "reason": "late"}


def clients_evaluate(t, since, version, mean, worst, *, clients=4, metric="accuracy"):
    figures = {f"{metric}_mean": mean, f"{metric}_std": 0.1, f"{metric}_worst_decile": worst}
    about = {"version": version, "since": since, "client_updates": 10 * version}
    counts = {"clients": clients, "num_examples": 10 * clients}
    return {"kind": "clients_evaluate", "t": t, **about, **counts, **figures}


def aggregate(t, version, client, age):
    return {"kind": "aggregate", "t": t, "version": version, "client": client, "age": age}


def evaluate(t, version, accuracy):
    return {"kind": "evaluate", "t": t, "version": version, "accuracy": accuracy, "loss": 1.0}


# Two clients, one three times as slow as the other. In a round the fast one waits for the slow one;
# with a buffer of one it starts again at once.
ROUNDS = [
    evaluate(0.0, 0, 0.1),
    dispatch(0.0, 0),
    dispatch(0.0, 1),
    arrival(1.0, 0),
    arrival(3.0, 1),
    aggregate(3.0, 1, [0, 1], [0, 0]),
    evaluate(3.0, 1, 0.5),
    dispatch(3.0, 1, 1),
    dispatch(3.0, 0, 1),
    arrival(4.0, 0, 1),
    arrival(6.0, 1, 1),
    aggregate(6.0, 2, [0, 1], [0, 0]),
    evaluate(6.0, 2, 0.95),
]
ASYNCHRONOUS = [
    evaluate(0.0, 0, 0.1),
    dispatch(0.0, 0),
    dispatch(0.0, 1),
    arrival(1.0, 0),
    aggregate(1.0, 1, [0], [0]),
    dispatch(1.0, 0, 1),
    arrival(2.0, 0, 1),
    aggregate(2.0, 2, [0], [0]),
    evaluate(2.0, 2, 0.92),
    dispatch(2.0, 0, 2),
    arrival(3.0, 1, 0, 2),
    aggregate(3.0, 3, [1], [2]),
    evaluate(3.0, 3, 0.85),
]
# Whatever can happen to clients, in eleven seconds.
EVENTFUL = [
    evaluate(0.0, 0, 0.1),
    dispatch(0.0, 0),
    dispatch(0.0, 1),
    dispatch(0.0, 2),
    {"kind": "pause", "t": 0.5, "client": 0, "base_version": 0, "progress": 0.5},
    {"kind": "refresh", "t": 0.5, "client": 0, "version": 0},
    arrival(1.0, 0),
    {**aggregate(1.0, 1, [0], [0]), "weight": [0.5], "kept": 1},
    {"kind": "checkpoint", "t": 1.0, "version": 1},
    dispatch(1.0, 0, 1),
    {**failure(2.0, 1), "reason": "KeyError: '<b>bold</b>'"},
    dispatch(2.0, 1, 1),
    {"kind": "cluster", "t": 2.0, "version": 1, "client": [0, 1], "cluster": [0, 0], "dropped": []},
    {**reject(3.0, client=0, base_version=1), "reason": "loss=nan must be a number"},
    dispatch(3.0, 0, 1),
    {"kind": "recall", "t": 3.5, "client": 0, "version": 1},
    {**failure(5.0, 2), "reason": "deadline passed"},
    {**reject(6.0, client=2, base_version=0), "reason": "late: its deadline had passed"},
    {**reject(6.5), "reason": "duplicate: this order was answered before"},
    arrival(7.0, 1, 1),
    {**aggregate(7.0, 2, [1], [0]), "weight": [0.25], "kept": 1},
    evaluate(7.0, 2, 0.8),
    dispatch(8.0, 1, 2),
    evaluate(11.0, 2, 0.8),
]

SUMMARY = {
    "bytes_down": 2_500_000,
    "bytes_up": 1_000_000,
    "updates_per_second": 812.4,
    "work_per_update": "10 steps",
    "stopped": "num_versions",
}


def write_pair(folder):
    """A cell that ended and one that did not."""
    write_cell(folder / "fedavg", events=ROUNDS, summary=SUMMARY, algorithm="fedavg")
    write_cell(folder / "fedasync", events=ASYNCHRONOUS, algorithm="fedasync")


def write_seeds(folder):
    """Two seeds of fedasync that end at 85 % and 92 % after 3 and 2 updates, and one fedavg."""
    write_cell(folder / "fedasync-seed0", events=ASYNCHRONOUS, algorithm="fedasync")
    write_cell(folder / "fedasync-seed1", events=ASYNCHRONOUS[:9], algorithm="fedasync")
    write_cell(folder / "fedavg", events=ROUNDS, summary=SUMMARY, algorithm="fedavg")
