"""Searches: their keys, trials, and studies that are killed; the benchmark: page and entries."""

import json
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.serverapp import strategy as flower
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.dp_fedbuff import DPFedBuff
from fl_app.algorithms.fedasync import FedAsync
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.scaffold import SCAFFOLD
from fl_app.algorithms.zeno import Zeno
from fl_app.asynchronous import Asynchronous
from fl_app.benchmark.conformance import TRIALS, Subject, Verdict, conformance
from fl_app.benchmark.entry import LOCAL_LR, enter, moved, of_app
from fl_app.benchmark.page import NUMBERS, PAGE, read, write
from fl_app.cli import compose, search_path
from fl_app.runner.validate import build_schedule, build_strategy
from fl_app.schedule.guided import Guided
from fl_app.search.settings import Settings, split
from fl_app.search.space import grid, override, parse
from fl_app.search.study import CellStudy, open_journal
from fl_app.strategy import AsyncStrategy

# -- the keys search.* -----------------------------------------------------------------------------


def test_keys_of_the_search_are_separated_from_those_of_the_experiment():
    overrides = ["experiment=quickstart", "search.trials=3", "search.seeds=[0,1]", "seed=3"]
    overrides += ["search.space=a=interval(0,1)", "search.space=b=choice(1,2)"]
    settings, others = split(overrides)
    assert others == ["experiment=quickstart", "seed=3"]
    assert settings == Settings(trials=3, seeds=[0, 1], space="a=interval(0,1) b=choice(1,2)")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["search.trails=3"], "unknown key 'search.trails'; did you mean search.trials"),
        (["search.trials=0"], "search.trials=0 must be an integer >= 1"),
        (["search.seeds=0"], "search.seeds=0 must be a list of seeds"),
        (["search.seeds=[1,1]"], "search.seeds=[1, 1] must be a list of seeds >= 0 and < 2^63"),
        ([f"search.seeds=[{2**63}]"], f"search.seeds=[{2**63}] must be a list of seeds >= 0"),
        (["search.test_seeds=[-1]"], "search.test_seeds=[-1] must be a list of seeds >= 0 and"),
        (
            ["search.seeds=[0,1]", "search.test_seeds=[1,2]"],
            "search.test_seeds=[1, 2] must be none",
        ),
        (["search.seeds=[0,1"], "search.seeds: ParserError: while parsing a flow sequence"),
        (["search.measure=mean"], "search.measure=mean must be one of last10, final, best"),
    ],
)
def test_bad_values_are_refused(overrides, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        split(overrides)


# -- the space of trials --------------------------------------------------------------------------


def test_words_describe_distributions():
    values = ["f=choice(1,2)", "a=choice(1,x,'a b')", "b=interval(0.1,2)", "b=interval(0.1,3)"]
    values += ["c=tag(log,interval(0.01,1))", "d=int(interval(1,9))", "e=range(2,10,3)", "f=null"]
    assert parse(values) == {
        "a": CategoricalDistribution([1, "x", "a b"]),
        "b": FloatDistribution(0.1, 3.0),
        "c": FloatDistribution(0.01, 1.0, log=True),
        "d": IntDistribution(1, 9),
        "e": IntDistribution(2, 8, step=3),
    }


@pytest.mark.parametrize(
    "word",
    [
        *("a=1", "a", "a=interval(2,1)", "a=interval(0,inf)", "a=tag(log,interval(0,1))"),
        *("a=choice([1,2],[3])", "a=range(0.5,3,0.5)", "a=glob(*)", "a=1,"),
    ],
)
def test_words_that_leave_no_choice_are_refused(word):
    with pytest.raises(ValueError, match=r"^search\.space: "):
        parse([word])


def test_the_grid_is_even_over_the_first_key_and_leaves_the_others_configured():
    """1/9, 1/3, 1 and 3 of 0.25; "d" is configured outside of its range, "e" between two steps."""
    others = ["b=choice(3,4)", "c=interval(0,1)", "d=interval(5,6)", "e=range(0,9,2)"]
    space = parse(["a=tag(log,interval(0.0278,0.75))", *others])
    first = grid(space, 4, {"a": 0.3, "b": 4, "c": 0.5, "d": 7, "e": 3})
    assert [values.pop("a") for values in first] == [0.0278, 0.08338, 0.2501, 0.75]
    assert first == [{"b": 4, "c": 0.5}] * 4


@pytest.mark.parametrize("value", ["a,b", "it's", "", "3", "true", "null", "[1]", 0.5, 3, True])
def test_an_override_of_a_value_is_read_as_that_value(value):
    assert OverridesParser.create().parse_override(override("key", value)).value() == value


# -- a study depends on nothing but its seed ------------------------------------------------------

SPACE = parse(["x=interval(-1.0,1.0)", "y=choice(a,b,c)"])
TRIED = 9


class Killed(Exception):
    pass


class Doomed(JournalFileBackend):
    """A journal whose process dies while it writes, after a number of writes."""

    def __init__(self, path, writes):
        super().__init__(str(path))
        self._path = path
        self._writes = writes

    def append_logs(self, logs):
        self._writes -= 1
        if self._writes < 0:
            with self._path.open("ab") as file:
                file.write(b'{"op_code": 4, "wor')
            Path(f"{self._path}.lock").touch()
            raise Killed
        super().append_logs(logs)


def study(storage, seed=0):
    return CellStudy(storage, "cell", SPACE, grid(SPACE, 3, {"y": "b"}), TRIED, seed)


def carry_out(cell_study):
    """Run a study whose score is best at x = 0.3 and y = "c"; return its trials."""
    for number in range(TRIED):
        if not cell_study.begin(number):
            continue
        values = cell_study._trial.params
        score = 1 - (values["x"] - 0.3) ** 2 + (values["y"] == "c")
        if values["x"] < -0.9:
            cell_study.fail("diverged")
        else:
            cell_study.complete({0: score, 1: score - 0.1})
    return [(t.number, t.params, t.state, t.value, t.user_attrs) for t in cell_study.study.trials]


def test_a_study_tries_the_grid_first(tmp_path):
    cell_study = study(open_journal(tmp_path / "study.jsonl"))
    trace = carry_out(cell_study)
    trials = cell_study.study.trials
    assert len(trials) == TRIED
    assert [(t.params["x"], t.params["y"]) for t in trials[:3]] == [(-1, "b"), (0, "b"), (1, "b")]
    assert trials[0].user_attrs["error"] == "diverged"
    assert trials[0].state == TrialState.PRUNED
    best = cell_study.best
    assert best is not None
    assert best.value == max(t.value or 0 for t in trials)
    assert cell_study.setting == [f"x={best.params['x']}", f"y='{best.params['y']}'"]
    assert best.user_attrs["scores"] == {"0": best.value + 0.05, "1": best.value - 0.05}
    other = carry_out(study(open_journal(tmp_path / "other.jsonl"), seed=1))
    assert other[:3] == trace[:3]  # the grid
    assert other[3:] != trace[3:]


def test_a_study_that_was_killed_anywhere_is_the_same(tmp_path):
    path = tmp_path / "whole.jsonl"
    whole = carry_out(study(open_journal(path)))
    moments = range(0, path.read_bytes().count(b"\n"), 5)
    assert len(moments) > 8
    for moment in moments:
        path = tmp_path / f"{moment}.jsonl"
        with pytest.raises(Killed):
            carry_out(study(JournalStorage(Doomed(path, moment))))
        assert carry_out(study(open_journal(path))) == whole, moment


# -- the page of an entry of the benchmark ---------------------------------------------------------

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
    for name, seeds in RUNS.items():
        for seed, (accuracy, updates, seconds) in enumerate(seeds):
            folder = tmp_path / f"{name}-seed{seed}"
            folder.mkdir()
            cost = {"updates_to_target": updates, "seconds_to_target": seconds}
            summary = {**END, "last10_accuracy": accuracy, **cost}
            (folder / "summary.json").write_text(json.dumps(summary))
            curve = pd.DataFrame(CURVES.get(name, CURVE), columns=["t", "accuracy"])
            curve.to_csv(folder / "metrics.csv", index=False)
    failure = tmp_path / "entry-X@slow-seed0"
    failure.mkdir()
    (failure / "summary.json").write_text(json.dumps({**END, "stopped": "diverged"}))
    (failure / "metrics.csv").write_text("t,accuracy\n0,0.1\n")
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
    verdict = write(tmp_path, "entry-X", "How.", verdicts, runs, published, budget)
    assert verdict == (
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
    assert numbers["places"][0] == verdict
    assert len(numbers["runs"]) == 9 + 3


def test_an_entry_without_a_result_has_no_place(runs, tmp_path):
    rest = runs[(runs.method != "entry-X") | (runs.seed > 0)]
    verdict = write(tmp_path, "entry-X", "", [], rest, rest[:0], (1, 1.0, 0.5))
    assert verdict.startswith("entry-X lacks a result in one of the settings")


# -- conformance -----------------------------------------------------------------------------------

FEDAVG, ONCE, ORDER, RESUMED = TRIALS


def mean(model, updates):
    return sum(model.delta(update) for update in updates) / np.float32(len(updates))


class CountsTheFirstTwice(AsyncStrategy):
    def aggregate(self, model, updates):
        return model.params + mean(model, [*updates, updates[0]])


class Repeats(AsyncStrategy):
    """It applies each mean once more, `later` versions later."""

    later = 1

    def aggregate(self, model, updates):
        means = self.state["all"] = [mean(model, updates), *self.state.get("all", [])]
        return model.params + sum(means[:: self.later][:2])


class CountsAllTwice(AsyncStrategy):
    def aggregate(self, model, updates):
        return model.params + 2 * mean(model, updates)


class CountsTheOldTwice(AsyncStrategy):
    def aggregate(self, model, updates):
        old = sum(model.delta(update) for update in updates if model.age(update))
        return model.params + mean(model, updates) + old


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


def stub(params):
    """A strategy that returns a function of the model."""
    return type("Own", (AsyncStrategy,), {"aggregate": lambda _, model, updates: params(model)})


STANDS, SHRINKS = stub(lambda model: model.params), stub(lambda model: model.params[:3])
DIVERGES = stub(lambda model: model.params * np.float32(math.nan))


NONE_HOLDS = dict.fromkeys(TRIALS, False)


def unrated(make):
    return Subject(make, "delta", 4, rated=False)


def rated(make, upload="delta", size=4):
    return Subject(make, upload, size, rated=True)


def of_flower(strategy, size=4):
    return rated(lambda: Asynchronous(strategy()), size=size)


@pytest.mark.parametrize(
    ("subject", "others", "message"),
    [
        (
            unrated(CountsTheFirstTwice),
            {FEDAVG: None, ONCE: False, ORDER: False},
            "weights from 0.2 to 0.4",
        ),
        (unrated(Repeats), {ONCE: False}, "acts 1 times as much as a new one in a later version"),
        (unrated(type("Late", (Repeats,), {"later": 2})), {ONCE: False}, "acts 1 times as much"),
        (unrated(CountsAllTwice), {FEDAVG: False}, "2 of FedAvg's step, clients weighted equally"),
        (unrated(CountsTheOldTwice), {ONCE: False}, "older updates move the model by 3, fresh"),
        (unrated(partial(FedBuff, server_lr=0.1)), {FEDAVG: None}, "shorter, as with a rate"),
        (rated(CountsAllTwice), {}, "2 of FedAvg's step, clients weighted equally"),
        (unrated(PrefersTheFirst), {FEDAVG: None, ONCE: False, ORDER: False}, "models differ by "),
        (rated(Forgets), {RESUMED: False}, "its checkpoint lacks what it had learned"),
        (unrated(Hoards), {RESUMED: False}, "Unkeepable: state.updates is a list_iterator"),
        (unrated(Breaks), NONE_HOLDS, "KeyError: 'who'"),
        (unrated(STANDS), {FEDAVG: False, ONCE: None, ORDER: None}, "the model stands still"),
        (unrated(SHRINKS), NONE_HOLDS, "returned shape (3,), expected that of"),
        (unrated(DIVERGES), NONE_HOLDS, "returned numbers that are not finite"),
        (rated(FedBuff, "pseudo"), {}, "1 of FedAvg's step, clients weighted equally"),
        (rated(partial(FedAsync, mixing=0.5), "model", 1), {ORDER: None}, "0.5 of FedAvg's step"),
        (rated(CA2FL), {}, "1 of FedAvg's step"),  # it declares its memories
        (rated(Zeno, "pseudo", 1), {ORDER: None}, "the same bytes"),  # it needs a gradient
        (rated(DPFedBuff), dict.fromkeys(TRIALS), "two equal runs of it differ"),
        (rated(SCAFFOLD), {}, "the same bytes"),  # it needs two vectors per upload
        (of_flower(flower.FedAvg), {}, "weighted by examples"),
        (of_flower(flower.FedAdam), {FEDAVG: None}, "the same bytes"),
        (of_flower(flower.FedMedian), {FEDAVG: None, ONCE: None}, ""),
        (
            of_flower(partial(flower.Krum, num_malicious_nodes=1), 7),
            {FEDAVG: None},
            "no multiple of FedAvg's step",
        ),
    ],
)
def test_all_trials_hold_but_those_that_find_a_fault(subject, others, message):
    verdicts = conformance(subject)
    assert {each.name: each.holds for each in verdicts} == dict.fromkeys(TRIALS, True) | others
    assert any(message in each.detail for each in verdicts)


# -- entries ---------------------------------------------------------------------------------------

APP = """\
from fl_app.asynchronous import Asynchronous
from fl_app.schedule import RoundBlocking
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvgM

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = Asynchronous(FedAvgM(server_learning_rate=context.run_config["rates.server"]))
    strategy.start(grid, None, schedule=RoundBlocking(10))
"""
PROJECT = '[tool.flwr.app]\ncomponents.serverapp = "entered_app:app"\nconfig.rates.server = 0.5\n'


@pytest.fixture(scope="module")
def config():
    return compose(["experiment=benchmark"])


def strategy_of(target, config, folder, *overrides):
    name, entry = enter(target, folder, config, overrides, [])
    cell = entry["cells"][name]
    return build_strategy(compose([search_path([folder]), "num_clients=100", *cell])), entry


def test_a_class_enters_with_its_rate_and_its_defaults(config, tmp_path):
    target = "fl_app.algorithms.dynsgd.DynSGD"
    strategy, entry = strategy_of(target, config, tmp_path, "algorithm.strategy.exponent=0.5")
    assert (strategy.exponent, strategy.lr_schedule.to) == (0.5, 0.4)
    space = "algorithm.strategy.server_lr=tag(log,interval(0.03704,9))"
    assert entry["spaces"]["entry-DynSGD"][-1] == space
    option = OmegaConf.load(tmp_path / "algorithm" / "entry-DynSGD.yaml")
    assert option.client.upload == "delta"


def test_a_range_moves_beyond_an_end_that_was_best():
    def range_after(best, key="a.server_lr", high=9):
        return moved(f"{key}=tag(log,interval(0.9,{high}))", [f"{key}={best}"])

    below, above = "a.server_lr=tag(log,interval(0.1,1))", "a.server_lr=tag(log,interval(8.1,81))"
    assert [range_after(best) for best in (0.9, 1.5, 9.0)] == [below, None, above]
    assert range_after(1.0, "a.mixing", 1) is None  # a share


class Own(Guided):
    pass


class Guides(CountsAllTwice):
    schedule = Own(concurrency=7)


class Unmade(CountsAllTwice):
    def __init__(self):
        raise RuntimeError("no table")


@pytest.mark.parametrize(
    ("target", "overrides", "schedule"),
    [
        ("fl_app.algorithms.ringleader.Ringleader", [], "TwoPhase()"),
        ("fl_app.algorithms.gsgm.GSGM", [], "RoundBlocking(buffer_size=10)"),
        ("fl_app.algorithms.dynsgd.DynSGD", ["algorithm/schedule=two_phase"], "TwoPhase()"),
        (f"{__name__}.Guides", [], "Own(concurrency=7, "),
    ],
)
def test_a_class_enters_with_a_schedule_of_its_own(target, overrides, schedule, config, tmp_path):
    name, entry = enter(target, tmp_path, config, overrides, [])
    run_config = compose([search_path([tmp_path]), "num_clients=100", *entry["cells"][name]])
    assert str(build_schedule(run_config)).startswith(schedule)
    assert run_config.num_versions == (200 if "buffer_size" in schedule else 2000)


def test_strategies_of_flower_enter_with_a_rate_or_that_of_the_clients(config, tmp_path):
    module = "flwr.serverapp.strategy"
    strategy, entry = strategy_of(f"{module}.FedAdam", config, tmp_path)
    assert isinstance(strategy.inner, flower.FedAdam)
    space = "algorithm.strategy.inner.eta=tag(log,interval(0.003704,0.9))"
    assert entry["spaces"]["entry-FedAdam"][-1] == space
    assert "num_versions=200" in entry["cells"]["entry-FedAdam"]
    _, entry = strategy_of(f"{module}.FedMedian", config, tmp_path)
    assert entry["spaces"]["entry-FedMedian"][-1] == LOCAL_LR


def test_the_strategy_of_an_app_enters_without_its_loop(config, tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "entered_app.py").write_text(APP)
    strategy, entry = strategy_of(str(tmp_path), config, tmp_path / "conf")
    assert strategy.inner.server_learning_rate == 0.5
    assert str(strategy.schedule) == "RoundBlocking(buffer_size=10)"  # the app's
    assert entry["spaces"]["entry-FedAvgM"][-1] == (
        "algorithm.strategy.server_learning_rate=tag(log,interval(0.01852,4.5))"
    )
    assert of_app(str(tmp_path), server_learning_rate=2.0).inner.server_learning_rate == 2.0
    (tmp_path / "pyproject.toml").write_text("[project]")
    with pytest.raises(ValueError, match="must be the folder of a Flower app: KeyError: 'tool'"):
        of_app(str(tmp_path))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("fedhits", "entry=fedhits must be package.module.Class, .*; did you mean fedhist"),
        ("no.such.Class", "entry=no.such.Class cannot be imported: ModuleNotFoundError"),
        ("torn.Class", "entry=torn.Class cannot be imported: SyntaxError: "),
        (f"{__name__}.Unmade", "Unmade cannot be made without arguments: RuntimeError: no table"),
        ("json.dumps", "entry=json.dumps must be a Strategy of Flower"),
        ("flwr.serverapp.strategy.QFedAvg", "QFedAvg cannot be made without .*client_learning"),
        ("flwr.serverapp.strategy.FedXgbBagging", "its models are trees"),
    ],
)
def test_invalid_entries_are_refused(target, message, config, tmp_path, monkeypatch):
    (tmp_path / "torn.py").write_text("class Class(:")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=re.compile(message)):
        enter(target, tmp_path, config, [], [])
