"""What a client begins with and is never sent again: frozen parameters, first private ones.

Clients build it from the seed. Where only the server has it, from a file of weights, a client asks
for it with its first order, once.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from configs import composed
from fake_grid import FakeGrid
from flwr.app import Context, Message

from fl_app import client_app
from fl_app.node.handler import MessageHandler
from fl_app.runner.cell import run_cell
from fl_app.runner.validate import validate_config

SMALL = ["algorithm=fedbuff", "num_clients=4", "num_versions=4", "eval_every=2", "partition=iid"]
SMALL += ["algorithm.schedule.buffer_size=2", "algorithm.schedule.concurrency=4"]
SMALL += ["algorithm.client.local_steps=2"]
HEAD = "task.trainable=[3.*]"  # of the perceptron: 32 x 10 + 10 parameters; 64 x 32 + 32 are frozen
OWN = "algorithm.client.private=[3.*]"
SIZES = {HEAD: (4 * 330, 4 * 2080), OWN: (4 * 2080, 4 * 330)}  # vector, fixed part


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    client_app.handler = MessageHandler()
    torch.set_num_threads(threads)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """A file whose values no seed makes."""
    file = tmp_path / "weights.npz"
    rng = np.random.default_rng(3)
    shapes = {"1.weight": (32, 64), "1.bias": (32,), "3.weight": (10, 32), "3.bias": (10,)}
    values = {name: 0.1 * rng.standard_normal(shape) for name, shape in shapes.items()}
    np.savez(file, **{name: value.astype(np.float32) for name, value in values.items()})
    return f"task.weights={file}"


def nodes(folder: Path, count: int, forgetful: bool = False) -> tuple[FakeGrid, list[Message]]:
    """Nodes with processes and files of their own, and what they replied.

    Args:
        folder: of their files.
        count: number of nodes.
        forgetful: every message is handled by a new process.
    """
    lock = Lock()
    replies: list[Message] = []
    handlers: dict[int, MessageHandler] = defaultdict(MessageHandler)

    def app(message: Message, context: Context) -> Message:
        with lock:
            client_app.handler = MessageHandler() if forgetful else handlers[context.node_id]
            replies.append(client_app.app(message, context))
            return replies[-1]

    configs: list[Any] = [
        {"partition-id": number, "state-dir": str(folder / f"node-{number}")}
        for number in range(count)
    ]
    return FakeGrid(app, count, configs), replies


def federation(folder: Path, *overrides: str, grid: Any = None) -> tuple[bytes, dict[str, Any]]:
    config = composed(*SMALL, *overrides)
    validate_config(config)
    _, summary = run_cell(config, folder, label="", grid=grid)
    assert (summary["stopped"], summary["failures"], summary["rejected"]) == ("num_versions", 0, 0)
    return (folder / "events.jsonl").read_bytes(), summary


def kinds(log: bytes) -> Counter[str]:
    return Counter(json.loads(line)["kind"] for line in log.splitlines())


def arrays(folder: Path) -> dict[str, Any]:
    with np.load(folder / "model.npz") as file:
        return dict(file)


@pytest.mark.parametrize("part", [HEAD, OWN])
@pytest.mark.parametrize("from_file", [False, True])
def test_the_same_files_in_flower_as_inline(
    part: str, from_file: bool, tmp_path: Path, weights: str
) -> None:
    overrides = [part, *([weights] if from_file else [])]
    inline = federation(tmp_path / "inline", *overrides, "runtime.workers=0")
    grid, _ = nodes(tmp_path, 2)
    flower = federation(tmp_path / "flower", *overrides, "runtime=flower", grid=grid)
    assert flower[0] == inline[0]
    assert flower[1]["model_sha256"] == inline[1]["model_sha256"]
    sent = sum("fixed" in message.content.array_records for message in grid.received)
    assert sent == 2 * from_file, "to each node once: one that serves another client has it"
    vector, fixed = SIZES[part]
    events = [json.loads(line) for line in inline[0].splitlines()]
    clients = {event["client"] for event in events if event["kind"] == "dispatch"}
    counts = kinds(inline[0])
    assert counts["supply"] == (len(clients) if from_file else 0)
    down = vector * counts["dispatch"] + fixed * counts["supply"]
    assert (inline[1]["bytes_down"], inline[1]["bytes_up"]) == (down, vector * counts["arrival"])


@pytest.mark.parametrize("part", [HEAD, OWN])
def test_clients_evaluate_with_it(part: str, tmp_path: Path, weights: str) -> None:
    """And with private parameters of their own: the same scores in Flower as inline."""
    overrides = [part, weights, "client_eval_every=2", "task.holdout=0.2"]
    inline = federation(tmp_path / "inline", *overrides, "runtime.workers=0")
    grid, _ = nodes(tmp_path, 2)
    flower = federation(tmp_path / "flower", *overrides, "runtime=flower", grid=grid)
    assert flower[0] == inline[0]
    assert kinds(inline[0])["client_evaluate"] > 4
    real, replies = nodes(tmp_path, 3, forgetful=True)
    log, _ = federation(tmp_path / "real", *overrides, "runtime=deployment", grid=real)
    assert kinds(log)["client_evaluate"] > 0
    for reply in replies:
        for record in reply.content.array_records.values():
            assert not any("3." in name for name in record)


def test_the_model_starts_from_the_file_and_keeps_what_is_frozen(
    tmp_path: Path, weights: str
) -> None:
    federation(tmp_path / "run", HEAD, weights, "runtime.workers=0")
    found = arrays(tmp_path / "run")
    with np.load(weights.partition("=")[2]) as file:
        first = dict(file)
    assert list(found) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    for name, array in found.items():
        assert (array == first[name]).all() == (name[0] == "1")
    assert np.abs(found["3.weight"] - first["3.weight"]).max() < 0.2


def test_a_clients_first_download_takes_longer_where_it_carries_the_fixed_part(
    tmp_path: Path, weights: str
) -> None:
    """At 1 kB/s without jitter and latency: 1.32 s for a vector, 8.32 s for the fixed part."""
    link = ["devices/network=link", "devices.network.down=1000", "devices.network.up=1e9"]
    link += ["devices.network.jitter=0", "devices.network.latency=0", "devices.ratio=1"]
    times = []
    for more in ([], [weights]):
        folder = tmp_path / str(len(times))
        log, _ = federation(folder, HEAD, *link, *more, "runtime.workers=0")
        events = [json.loads(line) for line in log.splitlines()]
        arrivals = [event for event in events if event["kind"] == "arrival"]
        seconds: dict[int, list[float]] = {}
        for event in arrivals:
            start = next(e["t"] for e in events if e.get("order") == event["order"])
            seconds.setdefault(event["client"], []).append(event["t"] - start)
        times.append(seconds)
    without, with_it = times
    for client, durations in with_it.items():
        assert durations[0] - without[client][0] == pytest.approx(8.32, abs=0.5)
        if len(durations) > 1:
            assert durations[1] < 3


@pytest.mark.parametrize("part", [HEAD, OWN])
@pytest.mark.parametrize("forgetful", [False, True])
def test_a_real_node_is_sent_the_fixed_part_once(
    part: str, forgetful: bool, tmp_path: Path, weights: str
) -> None:
    grid, replies = nodes(tmp_path, 3, forgetful)
    log, summary = federation(tmp_path / "run", part, weights, "runtime=deployment", grid=grid)
    supplied = [message for message in grid.received if "fixed" in message.content.array_records]
    assert set(Counter(message.metadata.dst_node_id for message in supplied).values()) == {1}
    assert len(list(tmp_path.rglob("fixed-*.npz"))) == len(supplied)
    vector, fixed = SIZES[part]
    counts = kinds(log)
    assert 1 <= counts["supply"] <= len(supplied), "the run may end before all have answered"
    assert summary["bytes_down"] == vector * counts["dispatch"] + counts["supply"] * fixed
    for reply in replies:
        for record in reply.content.array_records.values():
            assert not any("3." in name for name in record if part == OWN)
            assert sum(array.numpy().nbytes for array in record.values()) in (vector, 0)


def test_private_parameters_never_leave_a_real_node(tmp_path: Path) -> None:
    grid, replies = nodes(tmp_path, 3)
    federation(tmp_path / "run", OWN, "runtime=deployment", grid=grid)
    names = {name for m in replies for r in m.content.array_records.values() for name in r}
    assert names == {"vector"}
    files = list(tmp_path.rglob("client-*.npz"))
    assert files
    for path in files:
        with np.load(path) as state:
            assert set(state) == {"private.3.weight", "private.3.bias"}


def test_a_damaged_file_is_asked_for_again(tmp_path: Path, weights: str) -> None:
    """The second supply replaces it: the orders after that find it whole."""
    grid, _ = nodes(tmp_path, 1, forgetful=True)
    settings = [HEAD, weights, "runtime=deployment", "algorithm.schedule.buffer_size=1"]
    settings += ["algorithm.schedule.concurrency=1"]
    federation(tmp_path / "run", *settings, "num_versions=2", grid=grid)
    (file,) = tmp_path.rglob("fixed-*.npz")
    file.write_bytes(b"not a zip")
    federation(tmp_path / "run", *settings, "resume=auto", grid=grid)
    supplied = ["fixed" in message.content.array_records for message in grid.received]
    assert sum(supplied) == 2
    assert file.exists()
    assert file.with_suffix(".unreadable").exists()
