"""Shared by tests: a federation with a known optimum, fake clients and devices, whole runs."""

import json
import math
import subprocess
import sys
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any

import hydra
import numpy as np
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from torch import nn

from fl_app.cli import CONF, groups
from fl_app.client import LocalTrainer
from fl_app.client.batch import BatchTrainer, obstacle
from fl_app.client.initial import build_model
from fl_app.core.algorithm import Algorithm
from fl_app.core.events import to_json
from fl_app.core.score import ACCURACY
from fl_app.core.types import NO_EXTRA, GlobalModel, Order, Parts, Update, Upload
from fl_app.core.vector import weighted_sum
from fl_app.devices.compute import UniformRatio
from fl_app.devices.fleet import Fleet
from fl_app.engine.engine import Engine, Outcome, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline, Workers
from fl_app.record.history import Evaluation, History, OrderRecord
from fl_app.runner.components import build_components
from fl_app.runner.factory import build_engine
from fl_app.runner.validate import build_schedule, build_strategy
from fl_app.schedule import RandomK

torch.set_num_threads(1)  # forked workers must not inherit a pool of threads


def vec(*values):
    """A read-only float32 vector."""
    vector = np.array(values, np.float32)
    vector.flags.writeable = False
    return vector


def order_for(client_id, sequence, vector, config, state=None, extra=NO_EXTRA):
    """An order as its client receives it."""
    version = int(config.get("version", 0))
    return Order(0, client_id, sequence, version, vector, config, 0.0, state or {}, extra)


def update_of(client_id, base_version, *vector, kind="pseudo", examples=10, loss=0.1, **more):
    """An update of a client that trained from a version."""
    return Update(client_id, base_version, vec(*vector), kind, examples, loss, **more)


def steps(strategy, script, kind="pseudo"):
    """The step -w from w_t = 0 of each version of a script, or None if it refuses an upload.

    A version in the script is its number, then its uploads: client, vector, base version.
    """
    result = []
    for version, *uploads in script:
        updates = [update_of(client, base, *vector, kind=kind) for client, vector, base in uploads]
        model = GlobalModel(np.zeros_like(updates[0].vector), version)
        refusal = any(strategy.admit(model, each) for each in updates)
        result.append(None if refusal else (-strategy.aggregate(model, updates)).tolist())
    return result


def same_steps(actual, expected, rel=1e-6):
    for one, other in zip(actual, expected, strict=True):
        assert one == (None if other is None else pytest.approx(other, rel=rel))


def small_model(seed=0, width=4):
    """A module with buffers and dropout."""
    torch.manual_seed(seed)
    layers = nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 2)
    return nn.Sequential(*layers)


def python(*arguments, **options):
    """Python after it has run with these arguments and succeeded, with its output as text."""
    command = [sys.executable, *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, **options)
    assert process.returncode == 0, process.stdout + process.stderr
    return process


def status_of(main, *words):
    """The exit status of a command's `main` with these words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fl_app", *map(str, words)])
        return main()


def executable(path, script):
    """Write a shell script that can be run as a command."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


# -- a task ---------------------------------------------------------------------------------------


def initial_vector(task, seed):
    """w_0 and its layout."""
    model = build_model(task, seed)
    return model.read(), model.layout


class Position(nn.Module):
    """One point w; maps examples x to w - x."""

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float32))

    def forward(self, points):
        return self.w - points


class Quadratic:
    """f_i(w) = 1/2 mean ||w - x||^2 over the client's points x; the optimum is their mean.

    All clients have equally many points, so the federation's optimum is the mean of all points.
    """

    name = "quadratic"
    has_test_set = True
    mixed = ""
    objective = SimpleNamespace(score=ACCURACY)

    def __init__(self, points):
        """`points`: shape (clients, examples, d)."""
        array = np.asarray(points, np.float32)
        self.num_clients, self._each, self.dim = array.shape
        self.points = torch.from_numpy(array.reshape(-1, self.dim))
        self.optimum = array.mean((0, 1))

    @classmethod
    def scattered(cls, num_clients, examples=8, dim=3):
        """Points around a centre per client; the centres lie around (3, -3, 3, ...)."""
        rng = np.random.default_rng(5)
        middle = 3.0 * (-1.0) ** np.arange(dim)
        centres = middle + 0.3 * rng.standard_normal((num_clients, 1, dim))
        return cls(centres + 0.1 * rng.standard_normal((num_clients, examples, dim)))

    def model(self):
        return Position([0.0] * self.dim)

    def train_indices(self, client_id):
        return np.arange(client_id * self._each, (client_id + 1) * self._each)

    def batch(self, indices):
        return self.points[torch.from_numpy(indices)], torch.zeros(len(indices), dtype=torch.int64)

    def loss(self, output, target):
        return self.losses(output, target).mean()

    def losses(self, output, target):
        return 0.5 * output.square().sum(-1)

    def test(self, model):
        with torch.no_grad():
            distance = model(torch.from_numpy(self.optimum)).norm().item()
        return {"accuracy": 1.0 / (1.0 + distance), "loss": 0.5 * distance**2}

    def evaluation_indices(self, client_id):
        return self.train_indices(client_id)

    def evaluate(self, model, client_id):
        indices = self.train_indices(client_id)
        points, target = self.batch(indices)
        with torch.no_grad():
            loss = self.loss(model(points), target).item()
        return {"accuracy": 1.0 / (1.0 + loss), "loss": loss}, indices.size


class Headed(nn.Module):
    """A point w, stored as the weights of the linear layer that MOON needs; maps x to w - x."""

    def __init__(self, dim):
        super().__init__()
        self.head = nn.Linear(1, dim, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, points):
        return self.head(points.new_ones(len(points), 1)) - points


class HeadedQuadratic(Quadratic):
    def model(self):
        return Headed(self.dim)


# -- clients, devices, a strategy, a sink ---------------------------------------------------------


class Scripted:
    """A trainer whose uploads are a function of client, order number and received vector.

    Its scores are a function of client, version and vector.
    """

    def __init__(self, script, scores=None):
        self._script = script
        self._scores = scores

    def train(self, order):
        return self._script(order.client_id, order.sequence, order.vector)

    def score(self, order):
        return self._scores(order.client_id, order.base_version, order.vector)


def toward_own_number(client_id, sequence, received):
    """A sixteenth of the way to (client_id, -client_id, ...); converges even with stale updates."""
    target = np.resize(np.array([client_id, -client_id], np.float32), received.shape)
    return Upload((target - received) / 16, "delta", 10, loss=float(client_id))


class Times:
    """Devices whose seconds of training, or `Parts`, are a function of (client, order number)."""

    def __init__(self, seconds):
        self._seconds = seconds

    def parts(self, client_id, sequence, now):
        result = self._seconds(client_id, sequence)
        return result if isinstance(result, Parts) else Parts(0.0, result, 0.0)


class Stays:
    """Stays listed per client, beginning with the one at second 0; the last one never ends."""

    def __init__(self, stays, offline=()):
        self._stays = stays
        self._offline = offline

    def starts_online(self, client_id):
        return client_id not in self._offline

    def stay(self, client_id, number):
        stays = self._stays.get(client_id, ())
        return stays[number] if number < len(stays) else math.inf


class MeanDelta(Algorithm):
    """w <- w + mean of the displacements; records the versions of each history that it gets."""

    transient = ("histories",)

    def __init__(self):
        super().__init__()
        self.histories = []

    def aggregate(self, model, updates):
        self.histories.append(sorted(model.history))
        weights = [1 / len(updates)] * len(updates)
        return model.params + weighted_sum(weights, [model.delta(update) for update in updates])


Flat = dict[str, Any]
"""An event as the log has it."""


class Recorder:
    """Records every event as the log has it, and their history."""

    def __init__(self):
        self.events = []
        self.history = History()

    def emit(self, event):
        self.events.append(to_json(event))
        self.history.emit(event)

    def close(self): ...


# -- a run ----------------------------------------------------------------------------------------


@dataclass
class Run:
    """Outcome, events, history and strategy of a run."""

    outcome: Outcome
    events: list[Flat]
    history: History
    strategy: Any

    def kind(self, *kinds):
        return [event for event in self.events if event["kind"] in kinds]

    @property
    def final(self):
        return self.outcome.params.tobytes()


CLOCK = {"deadline", "availability", "epochs", "pauses", "steps", "evaluation_share", "server"}


def run(
    schedule,
    trainer=None,
    *,
    num_clients=10,
    num_versions=20,
    target_accuracy=math.inf,
    devices=None,
    workers=0,
    strategy=None,
    initial=None,
    seed=0,
    sinks=(),
    batch=1,
    **more,
):
    """Run a federation in virtual time; `workers` = 0 trains in this process.

    `batch` orders are computed together if the trainer supports that.
    """
    if trainer is None:
        trainer = Scripted(toward_own_number)
    if initial is None:
        size = trainer.model.layout.size if isinstance(trainer, LocalTrainer) else 2
        initial = np.zeros(size, np.float32)
    if devices is None:
        devices = Fleet(UniformRatio(ratio=5, num_clients=num_clients, seed=seed))
    clock = {key: more.pop(key) for key in CLOCK if key in more}
    if isinstance(trainer, LocalTrainer):
        clock |= {"epochs": trainer.epochs, "pauses": trainer.pauses}
    if batch > 1 and isinstance(trainer, LocalTrainer) and not obstacle(trainer):
        trainer = BatchTrainer(trainer, batch)
    strategy = strategy or MeanDelta()
    recorder = Recorder()
    mailbox = (
        Workers(trainer, workers, initial.size, vectors=1 + len(strategy.upload_extra))
        if workers
        else Inline(trainer)
    )
    engine = Engine(
        strategy=strategy,
        schedule=schedule,
        clock=VirtualClock(mailbox, devices, num_clients, seed=seed, **clock),
        initial=initial,
        stop=Stop(num_versions, target_accuracy=target_accuracy),
        sinks=[recorder, *sinks],
        seed=seed,
        **more,
    )
    return Run(engine.run(), recorder.events, recorder.history, strategy)


def engine_of(config, task=None, **more):
    """The engine of a configuration, and the recorder of its events."""
    recorder = Recorder()
    return build_engine(build_components(config, task), sinks=[recorder], **more), recorder


def run_configured(config, trainer, **more):
    """Run as configured, on devices whose speeds differ by a factor of up to five."""
    schedule = build_schedule(config)
    return run(
        schedule,
        trainer,
        num_clients=config.num_clients,
        num_versions=config.num_versions,
        devices=schedule if isinstance(schedule, RandomK) else None,
        strategy=build_strategy(config),
        seed=config.seed,
        **more,
    )


# -- configurations --------------------------------------------------------------------------------

# The file name of every algorithm.
ALGORITHMS = sorted(path.stem for path in (CONF / "algorithm").glob("*.yaml"))


# Without Flower's own strategies, which tests/contract/test_flower_strategies.py tests.
NAMES = sorted(
    path.stem
    for path in (CONF / "algorithm").glob("*.yaml")
    if "/target@strategy: fl_app.algorithms." in path.read_text()
)

# A common client, a server that learns, clients that pause, that work ahead, that compare with
# their last model, that correct gradients, and uploads of another kind.
REPRESENTATIVES = ("fedbuff", "wkafl", "fedasmu", "overlap_fedavg", "moon", "scaffold", "area")

# Algorithms that add noise: so little that other effects remain visible.
QUIET = {
    "dp_fedbuff": ["algorithm.strategy.noise_multiplier=0.01", "algorithm.strategy.clip_norm=9"]
}


@cache
def _chosen(options):
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=list(options))


def make_config(*overrides):
    """The composed configuration: options are composed once, which takes long, and copied."""
    options = [word for word in overrides if word.partition("=")[0] in groups() or word[0] in "+~"]
    config = deepcopy(_chosen(tuple(options)))
    values = [word for word in overrides if word not in options]
    for item in OverridesParser.create().parse_overrides(values):  # as Hydra does
        OmegaConf.update(config, item.key_or_group, item.value())
    return config


def schema(*columns, outputs=("no", "yes")):
    """The schema of a table by which "ill" is predicted from columns (name, mean, deviation)."""
    return {
        "format": 1,
        "kind": "classification",
        "input_shape": [len(columns)],
        "outputs": [*outputs],
        "targets": ["ill"],
        "columns": [
            dict(zip(("name", "mean", "deviation"), each, strict=True)) for each in columns
        ],
    }


AGE = ("age", 50.0, 20.0)


# -- folders of runs -------------------------------------------------------------------------------


def write_cell(folder, *, events=None, summary=None, algorithm=None, runtime="inprocess"):
    """Write the given files of a cell; an interrupted run lacks some."""
    folder.mkdir(parents=True, exist_ok=True)
    if algorithm:
        config = f"algorithm:\n  name: {algorithm}\nruntime:\n  name: {runtime}\n"
        (folder / "config.yaml").write_text(config)
    if events is not None:
        lines = (json.dumps(event) + "\n" for event in with_orders(events))
        (folder / "events.jsonl").write_text("".join(lines))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))


def with_orders(events):
    """The events with the numbers of their orders, found by client and version (if known)."""
    last, by_version, waiting, numbers = {}, {}, defaultdict(list), count()
    for event in events:
        kind, client = event["kind"], event.get("client")
        if "order" in event or client is None:
            yield event
            continue
        if kind == "dispatch":
            last[client] = by_version[client, event["version"]] = next(numbers)
        if kind in ("aggregate", "cluster"):
            order = [(waiting[each] or [-1]).pop(0) for each in event.get("dropped", client)]
        elif kind == "reject":
            order = by_version.get((client, event["base_version"]), last.get(client))
        else:
            order = last[client]
        if kind == "arrival":
            waiting[client].append(order)
        yield {**event, "order": order}


def history_of(orders=(), evaluations=(), t=100.0, *, each=10, **counts):
    """A history of orders (client, start, end) that arrived, and of evaluations (t, accuracy).

    Between two evaluations lie one version and `each` client updates.
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


def reject(t, **fields):
    return {"kind": "reject", "t": t, **fields, "reason": "late"}


def clients_evaluate(t, since, version, mean, worst, *, clients=4, metric="accuracy"):
    figures = {f"{metric}_mean": mean, f"{metric}_std": 0.1, f"{metric}_worst_decile": worst}
    header = {"version": version, "since": since, "client_updates": 10 * version}
    counts = {"clients": clients, "num_examples": 10 * clients}
    return {"kind": "clients_evaluate", "t": t, **header, **counts, **figures}


def aggregate(t, version, client, age):
    return {"kind": "aggregate", "t": t, "version": version, "client": client, "age": age}


def evaluate(t, version, accuracy):
    return {"kind": "evaluate", "t": t, "version": version, "accuracy": accuracy, "loss": 1.0}


# Two clients, one three times as slow as the other. In a round the fast client waits for the slow
# one; with a buffer of one it starts again at once.
ROUNDS = [
    *(evaluate(0.0, 0, 0.1), dispatch(0.0, 0), dispatch(0.0, 1)),
    arrival(1.0, 0),
    *(arrival(3.0, 1), aggregate(3.0, 1, [0, 1], [0, 0]), evaluate(3.0, 1, 0.5)),
    *(dispatch(3.0, 1, 1), dispatch(3.0, 0, 1)),
    arrival(4.0, 0, 1),
    *(arrival(6.0, 1, 1), aggregate(6.0, 2, [0, 1], [0, 0]), evaluate(6.0, 2, 0.95)),
]
ASYNCHRONOUS = [
    *(evaluate(0.0, 0, 0.1), dispatch(0.0, 0), dispatch(0.0, 1)),
    *(arrival(1.0, 0), aggregate(1.0, 1, [0], [0]), dispatch(1.0, 0, 1)),
    *(arrival(2.0, 0, 1), aggregate(2.0, 2, [0], [0]), evaluate(2.0, 2, 0.92), dispatch(2.0, 0, 2)),
    *(arrival(3.0, 1, 0, 2), aggregate(3.0, 3, [1], [2]), evaluate(3.0, 3, 0.85)),
]
# All kinds of events of clients, in eleven seconds.
EVENTFUL = [
    *(evaluate(0.0, 0, 0.1), dispatch(0.0, 0), dispatch(0.0, 1), dispatch(0.0, 2)),
    {"kind": "pause", "t": 0.5, "client": 0, "base_version": 0, "progress": 0.5},
    {"kind": "refresh", "t": 0.5, "client": 0, "version": 0},
    *(arrival(1.0, 0), {**aggregate(1.0, 1, [0], [0]), "weight": [0.5], "kept": 1}),
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
    *(evaluate(7.0, 2, 0.8), dispatch(8.0, 1, 2), evaluate(11.0, 2, 0.8)),
]

SUMMARY = {"bytes_down": 2_500_000, "bytes_up": 1_000_000, "wall_updates_per_second": 812.4}
SUMMARY |= {"work_per_update": "10 steps", "stopped": "num_versions"}


def write_pair(folder):
    """Write a cell that ended and one that did not."""
    write_cell(folder / "fedavg", events=ROUNDS, summary=SUMMARY, algorithm="fedavg")
    write_cell(folder / "fedasync", events=ASYNCHRONOUS, algorithm="fedasync")


def write_seeds(folder):
    """Write two seeds of fedasync, with 85 % and 92 % after 3 and 2 updates, and one fedavg."""
    write_cell(folder / "fedasync-seed0", events=ASYNCHRONOUS, algorithm="fedasync")
    write_cell(folder / "fedasync-seed1", events=ASYNCHRONOUS[:9], algorithm="fedasync")
    write_cell(folder / "fedavg", events=ROUNDS, summary=SUMMARY, algorithm="fedavg")
