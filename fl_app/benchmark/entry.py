"""The entry of the benchmark, a cell of its experiment: a class, or the strategy of an app."""

import math
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, cast

from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict
from flwr.serverapp.strategy import Strategy
from omegaconf import DictConfig, OmegaConf

from fl_app.cli import compose, nearest, search_path
from fl_app.core.errors import explaining, is_number, require
from fl_app.core.hyper import COUNT
from fl_app.schedule import Buffered, Schedule
from fl_app.search.space import override, parse
from fl_app.strategy import AsyncStrategy
from fl_app.strategy.asynchronous import Asynchronous, SeenNodes

# Names of rates. The first that a strategy has, as a number above 0, is searched.
RATES = ("server_lr", "server_learning_rate", "eta", "mixing", "learning_rate", "lr", "rate")
SHARES = ("mixing",)  # rates of at most 1
BELOW, ABOVE = 27, 9  # the range is default / 27 to 9 * default, as for the other methods
MOVED = 9  # factor of a range whose end was best, as for the other methods
LOCAL_LR = "algorithm.client.local_lr=tag(log,interval(0.00185,0.45))"  # if it has no rate
BUFFER, EVAL_EVERY = 10, 50  # client updates of a version (or 1), and of two evaluations
OURS = Buffered.__module__.rpartition(".")[0]  # its modules have the names of their options
UPLOADS = ("delta", "pseudo", "model")  # clients send the first that a strategy takes


def enter(
    target: str, conf: Path, config: DictConfig, words: Sequence[str], space: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """Write the entry as an option of ``algorithm=``.

    Args:
        target: a cell of the experiment, ``package.module.Class``, or the folder of a Flower app.
        conf: folder of options.
        config: of the experiment.
        words: overrides of the entry.
        space: overrides of the search space; empty = a rate.

    Returns:
        The name of its cell, and ``cells`` and ``spaces`` of an experiment that has it.

    Raises:
        ValueError: there is no such entry, or it cannot run.
    """
    cells = config.experiment.cells
    if cells.get(target):
        spaces = {target: [*space]} if space else {}
        return target, {"cells": {target: [*cells[target], *words]}, "spaces": spaces}
    defaults: list[Any] = [{"client": "sgd"}, "_self_"]
    node, place = dict[str, Any](), "algorithm.strategy."
    if (Path(target) / "pyproject.toml").is_file():
        strategy = of_app(target)
        inner = getattr(strategy, "inner", strategy)
        node = {"_target_": f"{__name__}.of_app", "folder": str(Path(target).resolve())}
        node |= _rates(inner)
    else:
        bound = f"package.module.Class, the folder of an app or one of {', '.join(cells)}"
        hint = f"there is nothing to enter{nearest(target, list(cells))}"
        require("." in target, "entry", target, bound, hint)
        with explaining(f"entry={target} cannot be imported"):
            package, _, name = target.rpartition(".")
            kind = getattr(import_module(package), name)
        valid = isinstance(kind, type) and issubclass(kind, Strategy)
        require(valid, "entry", target, "a Strategy of Flower", "it aggregates nothing")
        with explaining(f"entry={target} cannot be made without arguments"):
            inner = kind()
        strategy = inner if isinstance(inner, AsyncStrategy) else Asynchronous(inner)
        if strategy is not inner:
            place += "inner."
            node = {"_target_": f"{Asynchronous.__module__}.Asynchronous"}
        defaults.insert(0, {f"/target@{place.removeprefix('algorithm.')[:-1]}": target})
    decays = "lr_schedule" in vars(strategy)
    defaults[1:1] = [{"lr_schedule@strategy.lr_schedule": "linear"}] * decays
    client = {"upload": next((u for u in UPLOADS if u in strategy.takes), strategy.takes[0])}
    client |= {"_target_": strategy.needs} if strategy.needs else {}
    name = f"entry-{type(inner).__name__}"
    folder, schedule = conf / "algorithm", "k_async"
    (folder / "schedule").mkdir(parents=True, exist_ok=True)
    if type(strategy.schedule) is not Buffered:
        schedule = name
        OmegaConf.save(_option(strategy.schedule), folder / "schedule" / f"{name}.yaml")
    defaults.append({"schedule": schedule})
    option = {"defaults": defaults, "name": name, "strategy": node, "client": client}
    OmegaConf.save(option, folder / f"{name}.yaml")
    usual = getattr(strategy.schedule, "buffer_size", BUFFER) if inner is strategy else BUFFER
    size = getattr(inner, "buffer_size", usual)
    COUNT.check("buffer_size", size, "a version would take no update")
    cell = [f"algorithm={name}"]
    chosen = [word for word in words if word.startswith("algorithm/schedule=")]
    has_buffer = "buffer_size" in compose([search_path([conf]), *cell, *chosen]).algorithm.schedule
    cell += [f"algorithm.schedule.buffer_size={size}"] * has_buffer
    versions = config.max_updates // (size if has_buffer else 1)  # at most
    cell += [f"num_versions={versions}", f"eval_every={-(-EVAL_EVERY // size)}"]
    cell += ["algorithm.strategy.lr_schedule.to=0.4"] * decays  # as of the others
    for key, rate in list(_rates(inner).items())[: not space]:
        upper = min(ABOVE * rate, 1) if key in SHARES else ABOVE * rate
        space = [f"{place}{key}=tag(log,interval({rate / BELOW:.4g},{upper:.4g}))"]
    spaces = {name: ["algorithm.strategy.server_lr=null", *(space or [LOCAL_LR])]}
    return name, {"cells": {name: [*cell, *words]}, "spaces": spaces}


def moved(word: str, best: Sequence[str] | None) -> str | None:
    """The range of a rate, moved beyond its end if that was best; None = it was not.

    Args:
        word: ``KEY=tag(log,interval(LOW,HIGH))``.
        best: its override in the best trial; None = no trial was completed.
    """
    ((key, rates),) = cast(dict[str, Any], parse([word])).items()
    ends = {override(key, rates.low): 1 / MOVED, override(key, rates.high): MOVED}
    factor = ends.get(" ".join(best or []), 1)
    high = min(factor * rates.high, 1 if key.endswith(SHARES) else math.inf)
    space = f"{key}=tag(log,interval({factor * rates.low:.4g},{high:.4g}))"
    return None if high == rates.high else space


def _option(schedule: Schedule) -> dict[str, Any]:
    """A schedule as an option: that of its class, and the values other than the defaults."""
    kind = type(schedule)
    package, _, module = kind.__module__.rpartition(".")
    base = module if package == OURS else {"/target@_here_": f"{kind.__module__}.{kind.__name__}"}
    defaults = {key: parameter.default for key, parameter in signature(kind).parameters.items()}
    values = {key: getattr(schedule, key, value) for key, value in defaults.items()}
    return {"defaults": [base, "_self_"]} | {k: v for k, v in values.items() if v != defaults[k]}


def _rates(strategy: object) -> dict[str, float]:
    values: dict[str, Any] = {key: getattr(strategy, key, None) for key in RATES}
    return {key: rate for key, rate in values.items() if is_number(rate) and rate > 0}


class _Started(BaseException):
    """Ends a ServerApp when it starts its strategy."""


def of_app(folder: str, **values: float) -> AsyncStrategy:
    """The strategy that a Flower app's ServerApp starts; a loop of the app's own is not used.

    Args:
        folder: of the app, with its ``pyproject.toml``.
        values: of the strategy's attributes, in place of the app's.

    Raises:
        ValueError: the ServerApp starts none.
    """
    sys.path[:0] = [folder] * (folder not in sys.path)
    with explaining(f"entry={folder} must be the folder of a Flower app"):
        project = tomllib.loads((Path(folder) / "pyproject.toml").read_text())
        app = project["tool"]["flwr"]["app"]
        module, _, name = app["components"]["serverapp"].partition(":")
    main, caught = getattr(import_module(module), name), list[Any]()

    def start(strategy: Any, *_: object, schedule: Any = None, **__: object) -> None:
        if schedule is not None:
            strategy.schedule = schedule
        caught.append(strategy)
        raise _Started

    context = Context(0, 0, {}, RecordDict(), flatten_dict(app.get("config", {})))
    with ExitStack() as stack:
        for kind in filter(lambda kind: "start" in vars(kind), _kinds(Strategy)):
            stack.callback(setattr, kind, "start", vars(kind)["start"])
            kind.start = start
        with suppress(_Started):
            main(SeenNodes(10), context)
        bound = "the folder of an app whose ServerApp calls the start of a Strategy"
        require(bool(caught), "entry", folder, bound, "there is nothing to enter")
        vars(getattr(caught[0], "inner", caught[0])).update(values)
        # Here, where all have one `start`: a strategy with a loop of its own would be refused.
        return caught[0] if isinstance(caught[0], AsyncStrategy) else Asynchronous(caught[0])


def _kinds(kind: Any) -> Iterator[Any]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _kinds(subclass)
