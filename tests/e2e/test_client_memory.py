"""Clients that keep something between their orders, in every runtime."""

import json
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from configs import composed
from fake_grid import ClientApp, FakeGrid
from flwr.app import Context, Message

from fl_app import client_app
from fl_app.core.events import Aggregated
from fl_app.node import memory
from fl_app.node.handler import MessageHandler
from fl_app.record.files import JsonLines
from fl_app.runner.cell import run_cell
from fl_app.runner.validate import validate_config

SMALL = ["num_clients=6", "num_versions=6", "eval_every=3", "algorithm.client.local_epochs=3"]
CASES = {
    "fedasmu": ["algorithm=fedasmu", "devices/network=normal"],
    "overlap_fedavg": ["algorithm=overlap_fedavg", "devices/network=normal"],
    "moon": ["algorithm=moon", "algorithm.schedule.buffer_size=3"],
    "port": ["algorithm=port", "algorithm.schedule.buffer_size=2", "devices=uniform_110x"],
    "top_k": ["algorithm=fedbuff", "algorithm.schedule.buffer_size=3", "devices/network=normal"],
}
CASES["scaffold"] = ["algorithm=scaffold", *CASES["top_k"][1:]]
CASES["top_k"] += ["algorithm.schedule.concurrency=6"]
CASES["top_k"] += ["algorithm.client.top_k=0.05", "algorithm.client.upload_dtype=float16"]
CASES["scaffold_top_k"] = [*CASES["scaffold"], *CASES["top_k"][-2:]]
CASES["port"] += ["algorithm.strategy.staleness_bound=2", "algorithm.schedule.concurrency=6"]
CASES["fedasmu"] += ["algorithm.schedule.concurrency=3"]


def one_at_a_time(run_id: int = 1) -> ClientApp:
    """Nodes of the fake grid share a process, and with it the trainer; real ones do not."""
    lock = Lock()

    def app(message: Message, context: Context) -> Message:
        context.run_id = run_id
        with lock:
            return client_app.app(message, context)

    return app


def federation(
    folder: Path, overrides: list[str], grid: Any = None, *, stopped: str = "num_versions"
) -> tuple[bytes, str]:
    config = composed(*SMALL, *overrides)
    validate_config(config)
    _, summary = run_cell(config, folder, label="", grid=grid)
    assert summary["stopped"] == stopped
    return (folder / "events.jsonl").read_bytes(), summary["model_sha256"]


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path / "state"))
    client_app.handler = MessageHandler()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_any_node_serves_any_client_and_time_is_virtual(name: str, tmp_path: Path) -> None:
    """What a client keeps travels with its orders: the same files as without Flower."""
    inline = federation(tmp_path / "inline", [*CASES[name], "runtime.workers=0"])
    grid = FakeGrid(one_at_a_time(), 2)
    flower = federation(tmp_path / "flower", [*CASES[name], "runtime=flower"], grid)
    assert flower == inline
    workers = federation(tmp_path / "workers", [*CASES[name], "runtime.workers=2"])
    assert workers == inline
    kinds = {json.loads(line)["kind"] for line in inline[0].splitlines()}
    if name == "fedasmu":
        assert {"pause", "refresh"} <= kinds
    if name == "port":
        assert "recall" in kinds
    if name == "top_k":
        whole = federation(tmp_path / "whole", [*CASES[name][:4], "runtime.workers=0"])
        assert whole != inline
        sizes = [
            json.loads((tmp_path / folder / "summary.json").read_text())["bytes_up"]
            for folder in ("inline", "whole")
        ]
        assert sizes[0] == pytest.approx(sizes[1] * 0.05 * 6 / 4, rel=0.01)


@pytest.mark.parametrize("name", ["fedasmu", "overlap_fedavg", "top_k", "scaffold_top_k"])
def test_on_real_nodes_it_lies_in_files(name: str, tmp_path: Path) -> None:
    grid = FakeGrid(one_at_a_time(), 6)
    log, _ = federation(tmp_path / "real", [*CASES[name], "runtime=deployment"], grid)
    files = sorted(path.name for path in (tmp_path / "state").rglob("*.npz"))
    assert len(files) >= 3
    events = [json.loads(line) for line in log.splitlines()]
    assert [event for event in events if event["kind"] in ("failure", "reject")] == []
    if name == "overlap_fedavg":
        ages = [event["age"] for event in events if event["kind"] == "aggregate"]
        assert ages[0] == [0] * 6
        assert ages[-1] == [1] * 6


@pytest.mark.parametrize("name", ["moon", "overlap_fedavg"])
def test_on_real_nodes_it_is_there_when_a_run_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though Flower's run id is another one, and devices are ahead of the checkpoint."""
    overrides = [*CASES[name], "runtime=deployment", "checkpoint_every=2"]
    folder, state = tmp_path / "real", tmp_path / "state"

    def interrupt(self: JsonLines, event: Any) -> None:
        emit(self, event)
        if isinstance(event, Aggregated) and event.version == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        emit = JsonLines.emit
        patch.setattr(JsonLines, "emit", interrupt)
        federation(folder, overrides, FakeGrid(one_at_a_time(), 6), stopped="interrupted")
    files = set(state.rglob("*.npz"))
    rows = (folder / "devices.csv").read_text().splitlines()

    client_app.handler = MessageHandler()
    found: dict[Path, bool] = {}  # at the first order of every client
    load = memory.load

    def look(path: Path) -> Any:
        kept = load(path)
        found.setdefault(path, bool(kept))
        return kept

    monkeypatch.setattr(memory, "load", look)
    grid = FakeGrid(one_at_a_time(run_id=2), 6)
    log, _ = federation(folder, [*overrides, "resume=auto"], grid)
    assert set(state.rglob("*.npz")) >= files
    assert len(list(state.iterdir())) == 1
    assert [path for path in found if found[path]] == [path for path in found if path in files]
    events = [json.loads(line) for line in log.splitlines()]
    assert not any(event["kind"] == "reject" for event in events)
    if name == "overlap_fedavg":  # at first what is ahead of the server counts as forgotten
        ages = [event["age"] for event in events if event["kind"] == "aggregate"]
        assert ages == [[age] * 6 for age in (0, 1, 0, 1, 1, 1)]
        assert (folder / "devices.csv").read_text().splitlines()[:13] == rows[:13]
