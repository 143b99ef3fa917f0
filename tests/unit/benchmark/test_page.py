"""The page of what entered, from judged runs made by hand."""

import json
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from flwr.serverapp import strategy as flower
from omegaconf import OmegaConf

from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.fedasync import FedAsync
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.asynchronous import Asynchronous
from fl_app.benchmark.conformance import TRIALS, Tried, Verdict, conformance
from fl_app.benchmark.entry import LOCAL_LR, enter, of_app
from fl_app.benchmark.page import NUMBERS, PAGE, read, write
from fl_app.cli import compose, search_path
from fl_app.runner.validate import build_strategy
from fl_app.strategy import AsyncStrategy

END = {"score": "accuracy", "higher_is_better": True, "stopped": "updates"}
# Accuracy at the end, updates and seconds to the target, by seed.
RUNS = {
    "entry-X@iid": [(0.80, 100, 5.0), (0.82, 200, 7.0), (0.84, None, None)],
    "fedbuff@iid": [(0.70, None, None), (0.72, None, None), (0.74, None, None)],
    "fedavg@iid": [(0.85, 40, 9.0), (0.80, 40, 9.0), (0.87, 40, 9.0)],  # +5, -2, +3 points
}
# Of 10 seconds the last tenth has two evaluations, of FedAvg only the second half has one.
CURVES = {"fedavg@iid": [(0, 0.1), (6, 0.5), (12, 0.8)]}
CURVE = [(0, 0.1), (8.9, 0.2), (9.2, 0.6), (9.9, 0.7), (10.1, 0.9)]


@pytest.fixture
def runs(tmp_path):
    for name, own in RUNS.items():
        for seed, (accuracy, updates, seconds) in enumerate(own):
            folder = tmp_path / f"{name}-seed{seed}"
            folder.mkdir()
            cost = {"updates_to_target": updates, "seconds_to_target": seconds}
            summary = {**END, "last10_accuracy": accuracy, **cost}
            (folder / "summary.json").write_text(json.dumps(summary))
            curve = pd.DataFrame(CURVES.get(name, CURVE), columns=["t", "accuracy"])
            curve.to_csv(folder / "metrics.csv", index=False)
    failed = tmp_path / "entry-X@slow-seed0"
    failed.mkdir()
    (failed / "summary.json").write_text(json.dumps({**END, "stopped": "diverged"}))
    (failed / "metrics.csv").write_text("t,accuracy\n0,0.1\n")
    return read(tmp_path, 10.0)


def test_the_protocols_follow_from_the_judged_runs(runs):
    first = runs.set_index(["method", "seed"]).early
    assert first["entry-X", 0] == pytest.approx(0.65)  # mean of 0.6 and 0.7
    assert first["fedavg", 0] == 0.5
    assert "slow" not in set(runs.setting)  # a run that failed has no result


def test_the_page_says_place_and_cost(runs, tmp_path):
    """FedAvg is ahead by +5, -2, +3: 2 +- 4.30 x 3.61 / sqrt(3) reaches 0, so it ties."""
    published = pd.DataFrame(
        [(m, "iid", seed, 0.9) for m in ("fedbuff", "cana") for seed in range(3)],
        columns=["method", "setting", "seed", "accuracy"],
    )
    verdicts = [Verdict("no update is counted twice", False, "3 times")]
    budget = (2000, 10.0, 0.7)
    told = write(tmp_path, "entry-X", "How.", verdicts, runs, published, budget)
    assert told == (
        "entry-X is number 3 of 4 by mean rank. In mean accuracy 1 are ahead of it, 1 behind, and "
        "1 tie (fedavg)."
    )
    page = (tmp_path / PAGE).read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert ["no update is counted twice", "**FAILS**", "3 times"] in rows
    # The published FedBuff is left out: it was run beside the entry.
    assert [row[0] for row in rows[3:7]] == ["cana", "fedavg", "**entry-X**", "fedbuff"]
    assert ["**entry-X**", "2.7±1.4", "82.0±5.0"] in rows  # ranks 3, 2 and 3
    assert rows[-3:] == [
        ["**entry-X**", "150 in 6.0 s (2 of 3)"],
        ["fedavg", "40 in 9.0 s"],
        ["fedbuff", "-"],
    ]
    numbers = json.loads((tmp_path / NUMBERS).read_text())
    assert numbers["places"][0] == told
    assert len(numbers["runs"]) == 9 + 3


def test_an_entry_without_a_result_has_no_place(runs, tmp_path):
    lacks = runs[(runs.method != "entry-X") | (runs.seed > 0)]
    told = write(tmp_path, "entry-X", "", [], lacks, lacks[:0], (1, 1.0, 0.5))
    assert told.startswith("entry-X lacks a result in one of the settings")


# -- conformance -----------------------------------------------------------------------------------

FEDAVG, ONCE, ORDER, RESUMED = TRIALS


def mean(model, updates):
    return sum(model.delta(update) for update in updates) / np.float32(len(updates))


class CountsTheFirstTwice(AsyncStrategy):
    def aggregate(self, model, updates):
        return model.params + mean(model, [*updates, updates[0]])


class KeepsItsBuffer(AsyncStrategy):
    """It aggregates all that ever arrived."""

    def aggregate(self, model, updates):
        self.state["sum"] = self.state.get("sum", 0) + mean(model, updates)
        return model.params + self.state["sum"]


class CountsAllTwice(AsyncStrategy):
    def aggregate(self, model, updates):
        return model.params + 2 * mean(model, updates)


class PrefersTheFirst(AsyncStrategy):
    def aggregate(self, model, updates):
        params = model.params
        for update in updates:
            params = params + (model.local(update) - params) / 2
        return params


class Forgets(AsyncStrategy):
    transient = ("velocity",)
    velocity = 0.0

    def aggregate(self, model, updates):
        self.velocity = np.float32(0.5) * (self.velocity + mean(model, updates))
        return model.params + self.velocity


class Hoards(AsyncStrategy):
    def aggregate(self, model, updates):
        self.state["updates"] = iter(updates)
        return model.params + mean(model, updates)


class Breaks(AsyncStrategy):
    def aggregate(self, model, updates):
        raise KeyError("who")


def verdicts(make, size=4, upload="delta", rated=False):
    return {each.name: each for each in conformance(Tried(make, upload, size, rated))}


@pytest.mark.parametrize(
    ("make", "rated", "fails", "told"),
    [
        (
            *(CountsTheFirstTwice, False, {FEDAVG: None, ONCE: False, ORDER: False}),
            "weights from 0.2 to 0.4",
        ),
        (KeepsItsBuffer, False, {ONCE: False}, "acts 1 times as much in the next version, too"),
        (CountsAllTwice, False, {FEDAVG: False}, "2 of FedAvg's step, clients weighted equally"),
        (CountsAllTwice, True, {}, "2 of FedAvg's step, clients weighted equally"),
        (PrefersTheFirst, False, {FEDAVG: None, ONCE: False, ORDER: False}, "models differ by "),
        (Forgets, True, {RESUMED: False}, "its checkpoint lacks what it had learned"),
        (Hoards, False, {RESUMED: False}, "Unkeepable: state.updates is a list_iterator"),
        (Breaks, False, dict.fromkeys(TRIALS, False), "KeyError: 'who'"),
    ],
)
def test_what_is_broken_is_found_out_and_nothing_else(make, rated, fails, told):
    found = verdicts(make, rated=rated)
    assert {name: each.holds for name, each in found.items()} == {
        **dict.fromkeys(TRIALS, True),
        **fails,
    }
    assert any(told in each.told for each in found.values())


@pytest.mark.parametrize(
    ("make", "size", "upload", "others", "told"),
    [
        (FedBuff, 4, "pseudo", {}, "1 of FedAvg's step, clients weighted equally"),
        (partial(FedAsync, mixing=0.5), 1, "model", {ORDER: None}, "0.5 of FedAvg's step"),
        (CA2FL, 4, "delta", {}, "1 of FedAvg's step"),  # remembers, and declares it
        (lambda: Asynchronous(flower.FedAvg()), 4, "delta", {}, "weighted by examples"),
        (lambda: Asynchronous(flower.FedAdam()), 4, "delta", {FEDAVG: None}, "the same bytes"),
        (
            lambda: Asynchronous(flower.Krum(num_malicious_nodes=1)),
            *(7, "delta", {FEDAVG: None}, "no multiple of FedAvg's step"),
        ),
    ],
    ids=["FedBuff", "FedAsync", "CA2FL", "FedAvg", "FedAdam", "Krum"],
)
def test_what_conforms(make, size, upload, others, told):
    found = verdicts(make, size, upload, rated=True)
    assert {name: each.holds for name, each in found.items()} == {
        **dict.fromkeys(TRIALS, True),
        **others,
    }
    assert any(told in each.told for each in found.values())


# -- what enters -----------------------------------------------------------------------------------

APP = """\
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvgM

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvgM(server_learning_rate=context.run_config["rates.server"])
    strategy.start(grid, None, num_rounds=len(list(grid.get_node_ids())))
"""
PROJECT = """\
[tool.flwr.app.components]
serverapp = "entered_app:app"
[tool.flwr.app.config]
rates.server = 0.5
"""


@pytest.fixture(scope="module")
def config():
    return compose(["experiment=benchmark"])


def strategy_of(target, config, folder, *words):
    name, changed = enter(target, folder, config, words, [])
    cell = changed["cells"][name]
    return build_strategy(compose([search_path([folder]), "num_clients=100", *cell])), changed


def test_a_class_enters_with_its_rate_and_its_defaults(config, tmp_path):
    target = "fl_app.algorithms.dynsgd.DynSGD"
    strategy, changed = strategy_of(target, config, tmp_path, "algorithm.strategy.exponent=0.5")
    assert (strategy.exponent, strategy.lr_schedule.to) == (0.5, 0.4)
    assert changed["spaces"]["entry-DynSGD"][-1] == (
        "algorithm.strategy.server_lr=tag(log,interval(0.03704,9))"
    )
    option = OmegaConf.load(tmp_path / "algorithm" / "entry-DynSGD.yaml")
    assert option.client.upload == "delta"


def test_strategies_of_flower_enter_with_a_rate_or_that_of_the_clients(config, tmp_path):
    module = "flwr.serverapp.strategy"
    strategy, changed = strategy_of(f"{module}.FedAdam", config, tmp_path)
    assert isinstance(strategy.inner, flower.FedAdam)
    space = "algorithm.strategy.inner.eta=tag(log,interval(0.003704,0.9))"
    assert changed["spaces"]["entry-FedAdam"][-1] == space
    assert "num_versions=200" in changed["cells"]["entry-FedAdam"]
    _, changed = strategy_of(f"{module}.FedMedian", config, tmp_path)
    assert changed["spaces"]["entry-FedMedian"][-1] == LOCAL_LR


def test_the_strategy_of_an_app_enters_without_its_loop(config, tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "entered_app.py").write_text(APP)
    strategy, changed = strategy_of(str(tmp_path), config, tmp_path / "conf")
    assert strategy.inner.server_learning_rate == 0.5
    assert changed["spaces"]["entry-FedAvgM"][-1] == (
        "algorithm.strategy.server_learning_rate=tag(log,interval(0.01852,4.5))"
    )
    assert of_app(str(tmp_path), server_learning_rate=2.0).inner.server_learning_rate == 2.0


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("fedhits", "entry=fedhits must be package.module.Class, .*; did you mean fedhist"),
        ("no.such.Class", "_target_=no.such.Class cannot be imported: "),
        ("json.dumps", "entry=json.dumps must be a Strategy of Flower"),
        ("flwr.serverapp.strategy.QFedAvg", "QFedAvg must need no arguments: .*client_learning"),
        ("flwr.serverapp.strategy.FedXgbBagging", "its models are trees"),
    ],
)
def test_what_cannot_enter_is_refused(target, told, config, tmp_path):
    with pytest.raises(ValueError, match=re.compile(told)):
        enter(target, tmp_path, config, [], [])
