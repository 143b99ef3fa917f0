"""A certificate that a simulation is accurate: ``make twin ALGORITHM=fedbuff``.

    python -m lab.rack.twin fedbuff [--seconds 600]

Eight SuperNodes on this machine train on digits under one of five algorithms. They wait for known,
unequal seconds in every order, and each has a link of known delay and bandwidth. A device file is
fitted to the first half of the log, without its start; the fit does not know the waits and the
links. With this file, theory plans the run and the simulator repeats it. Both are compared with
the second half: updates a second, their ages, and every node's share. Accuracy at equal updates and
the seconds until the mean of five evaluations first reaches a target are those of the whole run.

The accuracy of a version depends on the sequence of arrivals, and a few hundredths of a second
change it. So the run is simulated several times: with the fitted seconds, and with seconds drawn
from their intervals. The prediction is the mean; a further run lies in its 95 % interval.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import ks_2samp, t

from fl_app import Result
from fl_app.api.plan import plan
from fl_app.cli import compose
from fl_app.core.errors import RunError
from fl_app.runner.cell import Plan, run_cell
from lab.demo import Federation, new_folder
from lab.faults.field import APP
from lab.rack.fit import TWO_SIDED
from lab.rack.fit import main as fit

# Of every node: seconds that it waits in an order, delay of its link each way, bytes per second.
NODES = (
    *((1.0, 0.0, 1e6), (2.0, 0.02, 1e6), (3.0, 0.05, 5e5), (4.0, 0.0, 2e5)),
    *((6.0, 0.1, 1e5), (8.0, 0.05, 1e5), (10.0, 0.1, 5e4), (14.0, 0.2, 5e4)),
)
SETTINGS = {
    "fedavg": ["schedule.buffer_size=8"],
    "fedbuff": ["schedule.concurrency=8", "schedule.buffer_size=4"],
    "fedhist": ["schedule.concurrency=8", "schedule.buffer_size=4", "strategy.norm_floor=0.05"],
    "fedasmu": ["schedule.concurrency=8", "schedule.period=0.5"],
    "eafl": [f"strategy.{word}" for word in ("num_clusters=3", "participation=0.5")],
}
TARGETS = {each: f"seconds to {each:.0%}" for each in (0.8, 0.9)}
WINDOW = 5  # evaluations whose mean has to reach a target
SIMULATIONS = 5
ONLINE = 240.0  # seconds that starting and ending may take
RATE, ACCURACY, AGE, DISTANCE = (
    *("updates a second", "accuracy at equal updates", "mean age"),
    "Kolmogorov-Smirnov distance of ages",
)
SHARES = [f"share of node {i}" for i in range(len(NODES))]
CLOSE, FAR = 0.05, 0.05  # largest relative error of rate and shares, and largest distance


def overrides_of(algorithm: str) -> list[str]:
    """The overrides of a run, real or simulated, except those that end it."""
    return [
        *(f"algorithm={algorithm}", "task=digits", "partition=dirichlet", "num_versions=null"),
        *(f"num_clients={len(NODES)}", "eval_every=1", "seed=0"),
        *(f"algorithm.{word}" for word in SETTINGS[algorithm]),
    ]


def record(folder: Path, words: Sequence[str], seconds: float) -> None:
    """Run the federation for a number of seconds.

    Raises:
        RunError: a process or the run failed.
    """
    limit = seconds + ONLINE
    with Federation(folder, len(NODES), limit, app=APP, linked=True) as federation:
        for link, (_, delay, speed) in zip(federation.links, NODES, strict=True):
            for way in (link.up, link.down):
                way.delay, way.bytes_per_second = delay, speed
        federation.start([f"wait={wait}" for wait, *_ in NODES])
        federation.run(folder / "run", [*words, "runtime=deployment", f"max_seconds={seconds}"])


def draw_table(table: dict[str, Any], number: int) -> dict[str, Any]:
    """A device file like `table` with seconds drawn from their intervals; number 0 is `table`."""
    rng = random.Random(number)
    kinds = {}
    for name, kind in table["kinds"].items():
        low, high = kind["interval"]
        deviation = (high - low) / 2 / TWO_SIDED if number else 0.0
        kinds[name] = kind | {"seconds": max(rng.gauss(kind["seconds"], deviation), 1e-3)}
    return table | {"kinds": kinds}


def simulate(
    folder: Path, words: Sequence[str], table: dict[str, Any], seconds: float
) -> list[pd.DataFrame]:
    """Simulate the run with the fitted table and with draws from it; the runs' events."""
    results = []
    for number in range(SIMULATIONS):
        output = folder / f"simulated-{number}"
        path = folder / f"drawn-{number}.json"
        path.write_text(json.dumps(draw_table(table, number)))
        boards = ["devices=boards", f"devices.table={path}", "runtime.workers=0"]
        config = compose([*words, *boards, f"max_seconds={seconds}"])
        run_cell(Plan(config), output, label=output.name)
        results.append(Result(output).events)
    return results


def ages(events: pd.DataFrame, since: float) -> "pd.Series[float]":
    """The ages of the updates that were aggregated from a time on."""
    return events.age[(events.kind == "aggregate") & (events.t >= since)].explode().astype(float)


def measures(events: pd.DataFrame, since: float, until: float, updates: int) -> dict[str, float]:
    """Measures between two times, by name; accuracies and `TARGETS` are of the whole run."""
    arrivals = events[events.kind == "arrival"]
    clients = arrivals.client[(arrivals.t >= since) & (arrivals.t < until)]
    shares = clients.value_counts(normalize=True)
    evaluations = events[events.kind == "evaluate"].dropna(subset="accuracy")
    accuracy = evaluations.accuracy.rolling(WINDOW).mean()
    return {
        RATE: len(clients) / (until - since),
        AGE: ages(events, since).mean(),
        **{name: shares.get(node, 0.0) for node, name in enumerate(SHARES)},
        ACCURACY: accuracy[evaluations.t <= arrivals.t.iloc[updates - 1]].iloc[-1],
        **{name: evaluations.t[accuracy >= target].min() for target, name in TARGETS.items()},
    }


def prediction(words: Sequence[str], table: Path) -> dict[str, float]:
    """The predictions of theory, by name; none for a schedule that it does not cover."""
    try:
        result = plan(*words, "devices=boards", f"devices.table={table}", "max_seconds=1")
    except ValueError as error:
        print(f"Not planned: {error}")
        return {}
    shares = [result.classes.share[f"client-{node}"] for node in range(len(NODES))]
    return {
        RATE: result.measures["updates_per_second"],
        AGE: result.measures["mean_age"],
        **dict(zip(SHARES, shares, strict=True)),
    }


def compare(
    real: pd.DataFrame, simulated: Sequence[pd.DataFrame], plans: dict[str, float], seconds: float
) -> pd.DataFrame:
    """A row for each measure; `good` = it is close enough, None = not required."""
    half = seconds / 2
    updates = min((events.kind == "arrival").sum() for events in (real, *simulated))
    true = measures(real, half, seconds, updates)
    runs = pd.DataFrame([measures(each, half, seconds, updates) for each in simulated])
    size = len(simulated)
    spread = t.ppf(0.975, size - 1) * math.sqrt(1 + 1 / size) * runs.std()
    rows = pd.DataFrame(
        {
            "planned": pd.Series(plans, dtype=float),
            "simulated": runs.mean(skipna=False),
            "low": runs.mean() - spread,
            "high": runs.mean() + spread,
            "measured": pd.Series(true),
        }
    ).loc[[*true]]
    rows["error"] = rows.simulated / rows.measured - 1
    rows["good"] = None
    close = [RATE, *SHARES]
    rows.loc[close, "good"] = rows.error[close].abs() <= CLOSE
    rows.loc[ACCURACY, "good"] = rows.measured.between(rows.low, rows.high)[ACCURACY]
    distance = ks_2samp(pd.concat([ages(each, half) for each in simulated]), ages(real, half))
    rows.loc[DISTANCE, ["measured", "good"]] = distance.statistic, distance.statistic <= FAR
    return rows


def show(rows: pd.DataFrame) -> None:
    """Print the comparison as a table."""
    print("| measure | planned | simulated | measured | error | |\n|---|---|---|---|---|---|")
    for name, row in rows.iterrows():
        numbers = row.planned, row.simulated, row.measured
        texts = ["" if pd.isna(number) else f"{number:.4g}" for number in numbers]
        if name in (ACCURACY, *TARGETS.values()) and texts[1]:
            texts[1] += f" [{row.low:.4g}, {row.high:.4g}]"
        texts += ["" if pd.isna(row.error) else f"{row.error:+.1%}"]
        verdict = "" if row.good is None else "good" if row.good else "NOT GOOD"
        print(f"| {name} | {' | '.join(texts)} | {verdict} |")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0; 1 if the federation failed or is not as simulated; 2 if nothing could be fitted.
    """
    parser = argparse.ArgumentParser(prog="python -m lab.rack.twin")
    parser.add_argument("algorithm", choices=SETTINGS)
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the run (600)")
    args = parser.parse_args(arguments)
    if not 0 < args.seconds < math.inf:
        parser.error(f"--seconds {args.seconds:g} must be a number > 0: nothing would be recorded")
    words, seconds = overrides_of(args.algorithm), args.seconds
    folder = new_folder(f"twin-{args.algorithm}")
    try:
        record(folder, words, seconds)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    table, log = folder / "fitted.json", folder / "run/events.jsonl"
    # While nodes start, they take the cores from each other.
    interval = ["--since", str(seconds / 5), "--until", str(seconds / 2)]
    if fit([str(log), *interval, "--output", str(table)]):
        return 2
    contents = json.loads(table.read_text())
    if args.algorithm == "fedasmu":  # between two dispatches its clock waits, and does no work
        contents["server"].pop("dispatch", None)
        table.write_text(json.dumps(contents, indent=2))
    simulated = simulate(folder, words, contents, seconds)
    real = Result(folder / "run").events
    rows = compare(real, simulated, prediction(words, table), seconds)
    show(rows)
    certificate = folder / "certificate.json"
    certificate.write_text(rows.to_json(orient="index", indent=2))
    print(f"Certificate: {certificate}")
    return 0 if all(good is None or good for good in rows.good) else 1


if __name__ == "__main__":
    sys.exit(main())
