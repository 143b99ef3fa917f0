"""Real nodes on one machine: FedBuff on the wall clock, on a SuperLink and SuperNodes.

    python -m fl_app.field.demo [--nodes 3] [--versions 4] [overrides]

The nodes are warm, unless WARM=0 in the environment (`fl_app.node.warm`).

``flwr run`` exits with 0 even if the ServerApp crashed. The demo therefore checks the run's status
(``flwr ls``) and the summary that the run wrote.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_app.core.events import to_json
from fl_app.field.loopback import Federation, FederationError
from fl_app.record.log import Log

APP = Path(__file__).resolve().parents[2]  # where pyproject.toml lies
TAIL = 25  # lines of a log that are shown after a failure
# Keys of an event that are printed.
SHOWN = ("client", "version", "base_version", "age", "accuracy", "reason")


def run_on(
    federation: Federation, output: Path, overrides: Sequence[str], app: Path = APP
) -> dict[str, Any]:
    """Run an app on the federation's nodes and print its events.

    Returns:
        The run's summary.

    Raises:
        FederationError: the run failed.
    """
    words = " ".join(overrides)
    print(f"flwr run . demo --run-config \"overrides='{words}'\"", flush=True)
    run_config = f"overrides={json.dumps(words)} output={json.dumps(str(output))}"
    run = federation.spawn(
        "run", "flwr", "run", str(app), "demo", "--stream", "--run-config", run_config
    )
    events = Log(output / "events.jsonl")
    while run.poll() is None:
        federation.wait(0.5)
        _print(events)
    _print(events)
    log = federation.log("run")
    if run.returncode:
        raise FederationError("`flwr run` could not submit the run", log)
    (entry,) = federation.ask("list", "demo")["runs"]
    if entry["status"] != "finished:completed":
        raise FederationError(f"the run is {entry['status']}: {entry['status-details']}", log)
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary


def main() -> int:
    """Run the command line; return 0 if the run succeeded, 130 after Ctrl-C, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m fl_app.field.demo",
        description="Run FedBuff on a SuperLink and SuperNodes that are processes on this machine.",
    )
    parser.add_argument("--nodes", type=int, default=3, help="SuperNodes to start (3)")
    parser.add_argument("--versions", type=int, default=4, help="model versions to publish (4)")
    parser.add_argument("overrides", nargs="*", help="more keys, as after `python -m fl_app`")
    arguments = parser.parse_args()
    if arguments.nodes < 1 or arguments.versions < 1:
        parser.error("--nodes and --versions must be at least 1")
    overrides = [
        *("algorithm=fedbuff", "runtime=deployment", "partition=iid", "eval_every=1"),
        f"num_clients={arguments.nodes}",
        f"num_versions={arguments.versions}",
        f"algorithm.schedule.concurrency={arguments.nodes}",
        f"algorithm.schedule.buffer_size={min(2, arguments.nodes)}",
        *arguments.overrides,
    ]
    folder = Path(f"outputs/superlink-demo-{time.strftime('%Y-%m-%d-%H-%M-%S')}").resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    federation = Federation(folder)
    status = 1
    try:
        federation.start(arguments.nodes, supernode=[sys.executable, "-m", "fl_app.node.warm"])
        summary = run_on(federation, folder / "run", overrides)
        if summary["failures"]:
            reason = f"{summary['failures']} orders failed"
            raise FederationError(reason, federation.log("run"))
        print(
            f"{summary['algorithm']} on {arguments.nodes} nodes: "
            f"{summary['num_versions']} versions from {summary['client_updates']} client updates "
            f"in {summary['wall_seconds']:.0f} s, accuracy {summary['final_accuracy']:.1%}, "
            f"mean staleness {summary['mean_staleness']:.1f}, no failures"
        )
        status = 0
    except FederationError as error:
        text = error.log.read_text(errors="replace") if error.log.exists() else ""
        print(f"--- the end of {error.log}", *text.splitlines()[-TAIL:], sep="\n", file=sys.stderr)
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    finally:
        for disturbance in (signal.SIGINT, signal.SIGTERM):
            signal.signal(disturbance, signal.SIG_IGN)  # a second one would leave processes
        if not federation.stop():
            print("error: a process did not end", file=sys.stderr)
            status = 1
        shutil.rmtree(federation.home, ignore_errors=True)
        print(f"Files: {folder}", flush=True)
    return status


def _print(events: Log) -> None:
    """Print the events that are new since the last call."""
    for event in events.read():
        flat = to_json(event)
        what = "  ".join(f"{key} {_short(flat[key])}" for key in SHOWN if key in flat)
        print(f"{event.t:7.1f} s  {event.kind:10} {what}", flush=True)


def _short(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
