"""``python -m fl_app.benchmark ENTRY [overrides]``."""

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import Any

PEERS = ("fedavg", "fedavg-updates", "fedavg_k", "fedbuff", "fedasync", "fedhist-average")
# How many settings (None = all), methods beside, trials, how many form a grid, and test seeds.
QUICK = 1, PEERS[2:4], 3, 3, [10, 11, 12]
WHOLE = None, PEERS, 9, 6, [10, 11, 12, 13, 14]
SECONDS = 10.0
MOVES = 2  # of a range whose end was best
TRIED = re.compile(r"=\w+\(")  # in an override that describes a search space


def benchmark(args: argparse.Namespace, command: str) -> bool:
    """Carry out the command line; return whether the entry conforms.

    Raises:
        ValueError: something is refused.
        RunError: a run failed; the same command resumes.
        Interrupted: Ctrl-C; the same command resumes.
    """
    import pandas as pd
    from omegaconf import OmegaConf

    from fl_app.benchmark import page
    from fl_app.benchmark.conformance import Subject, conformance
    from fl_app.benchmark.entry import enter, moved
    from fl_app.cli import compose, search_path
    from fl_app.client.build import build_task
    from fl_app.core.errors import require
    from fl_app.core.files import require_writable
    from fl_app.runner.validate import build_schedule, build_strategy
    from fl_app.search.search import search
    from fl_app.search.settings import BEST, Settings

    first, usual, trials, grid, seeds = QUICK if args.quick else WHOLE
    config = compose([experiment := f"experiment={args.experiment}", *args.common])
    known = [name for name, words in config.experiment.settings.items() if words]
    cells = [name for name, words in config.experiment.cells.items() if words]
    settings = args.settings or known[:first]
    peers = args.peers or [peer for peer in usual if peer in cells]
    for flag, names, options in (("--settings", settings, known), ("--peers", peers, cells)):
        for name in names:
            bound = f"one of {', '.join(options)}"
            require(name in options, flag, name, bound, "there is no other")
    label = Path(args.entry).name + "-quick" * args.quick
    folder = (args.folder or Path("outputs") / f"benchmark-{label}").resolve()
    path, conf = folder / "given.json", folder / "conf"
    request = [args.experiment, args.entry, args.words, args.common, args.quick]
    matches = not (folder / "search").exists() or json.loads(path.read_text()) == request
    bound = f"a new folder, or one with the arguments in {path}"
    require(matches, "--folder", folder, bound, "runs could not be compared")
    space = [word for word in args.words if TRIED.search(word)]
    own_words = [word for word in args.words if word not in space]
    name, added = enter(args.entry, conf, config, own_words, space)
    methods = [name, *(peer for peer in peers if peer != name)]
    only = [f"{method}@{setting}" for setting in settings for method in methods]
    with require_writable(folder):
        (conf / "experiment").mkdir(parents=True, exist_ok=True)

    def write_experiment(only: Sequence[str]) -> None:
        own = {"defaults": [args.experiment], "experiment": added | {"only": only}}
        text = OmegaConf.to_yaml(own).replace("${", "\\${")
        (conf / "experiment" / "entry.yaml").write_text(f"# @package _global_\n{text}")

    write_experiment(only)
    words = [search_path([conf]), "experiment=entry", *args.common]
    spaces = added["spaces"].get(name) or compose(words).experiment.spaces.get(name) or []
    cell_words = [*config.experiment.overrides, *added["cells"][name], *args.common]
    cell = compose([words[0], experiment, "num_clients=100", *cell_words])
    score = build_task(cell).objective.score.name
    require(score == "accuracy", "--common", score, "a task with accuracy", "the page compares it")
    schedule = build_schedule(cell)
    size = getattr(schedule, "buffer_size", 1)
    has_rate = not any("local_lr" in word for word in spaces)
    search_settings = Settings(trials=trials, grid=grid, test_seeds=seeds, parallel=args.parallel)
    make = partial(build_strategy, cell)
    path.write_text(json.dumps(request))
    verdicts = conformance(Subject(make, cell.algorithm.client.upload, size, has_rate))
    for verdict in verdicts:
        print(f"{verdict.name}: {page.HOLDS[verdict.holds]}: {verdict.detail}")

    runs = len(only) * (trials + len(seeds))
    print(f"{len(methods)} methods in {len(settings)} settings: {runs} runs", flush=True)
    words += ["runtime.workers=0", "runtime.batch=16"]
    best, tests = dict[str, Any](), []
    is_usual = not space and name not in cells  # the range of a rate
    ranges = {f"{name}@{setting}": spaces[-1] for setting in settings if is_usual}
    for number in range(1 + MOVES):
        place = folder / f"search{number or ''}"
        search(search_settings, words, place, resume=True)
        best |= {cell: own for cell, own in OmegaConf.load(place / BEST).cells.items() if own}
        tests.append(page.read(place / "test", SECONDS))
        ranges = {cell: to for cell, word in ranges.items() if (to := moved(word, best.get(cell)))}
        if not ranges:
            break
        added["spaces"] |= {cell: [word] for cell, word in ranges.items()}
        write_experiment([*ranges])
    results = pd.concat(tests).drop_duplicates(["method", "setting", "seed"], keep="last")
    results = results[(results.method + "@" + results.setting).isin(only)]
    published = page.DOCS / f"{args.experiment}.csv"
    at_hand = published.exists() and not args.common and not args.quick  # of fewer trials
    others = pd.read_csv(published) if at_hand else results[:0]
    others = others[others.setting.isin(settings) & others.seed.isin(seeds)]
    values = "; ".join(f"`{' '.join(best.get(f'{name}@{s}', ['none']))}` ({s})" for s in settings)
    by_key = {word.partition("=")[0]: word for word in [*config.experiment.space, *spaces]}
    space = [word for word in by_key.values() if not word.endswith("=null")]
    note = "Only these methods are compared"
    if at_hand:
        note = "Other methods: its published runs, of nine trials, on the same seeds"
    text = (
        f"`{command}` wrote this page, and rewrites it. The settings are of "
        f"`{experiment}`. {', '.join(methods)}: {trials} trials each on seed 0, and the "
        f"best values judged on the seeds {', '.join(map(str, seeds))}. Tried of the entry: "
        f"`{' '.join(space)}`{' and, where an end was best, beyond it' * is_usual}. Best of it: "
        f"{values}. Its schedule: {type(schedule).__name__}. "
        f"{note}. Intervals are 95 % ones over the seeds; differences are paired by seed."
    )
    budget = config.max_updates, SECONDS, config.experiment.report_accuracy
    print(page.write(folder, name, text, verdicts, results, others, budget))
    print(f"Page: {folder / page.PAGE}")
    return all(verdict.holds is not False for verdict in verdicts)


def main(argv: Sequence[str]) -> int:
    """Carry out the command.

    Returns:
        1 if the entry does not conform or a run failed, 2 if something is refused, 130 or 143 after
        Ctrl-C or SIGTERM, else 0.
    """
    from hydra.errors import HydraException

    from fl_app.cli import failure
    from fl_app.core.errors import Interrupted, RunError
    from fl_app.core.extras import explaining_imports
    from fl_app.runner import signals

    parser = argparse.ArgumentParser(
        prog="python -m fl_app.benchmark",
        description="Tries a method, and writes its place among others. The same command resumes, "
        "and rewrites the page.",
    )
    text = "package.module.Class, the folder of a Flower app, or a cell of experiment=benchmark"
    parser.add_argument("entry", help=text)
    text = "overrides of the entry: KEY=VALUE, or KEY=interval(...) in place of its rate"
    parser.add_argument("words", nargs="*", help=text)
    parser.add_argument("--quick", action="store_true", help="one setting, few trials and seeds")
    names = "benchmark", "benchmark_states"
    parser.add_argument("--experiment", choices=names, default=names[0], help="of the settings")
    parser.add_argument("--settings", nargs="+", help="default: all")
    parser.add_argument("--peers", nargs="+", help=f"run beside it; default: {' '.join(PEERS)}")
    parser.add_argument("--common", nargs="+", default=[], help="overrides of all runs")
    parser.add_argument("--folder", type=Path, help="default: outputs/benchmark-ENTRY")
    parser.add_argument("--parallel", type=int, default=os.cpu_count(), help="runs at a time")
    arguments = parser.parse_intermixed_args(argv)
    try:
        with explaining_imports():
            command = shlex.join(["python", "-m", "fl_app.benchmark", *argv])
            return 0 if benchmark(arguments, command) else 1
    except (Interrupted, KeyboardInterrupt):
        print("interrupted; the same command goes on", file=sys.stderr)
        return 128 + (signals.received or SIGINT)
    except (ValueError, RunError, HydraException) as error:
        return failure(error, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
