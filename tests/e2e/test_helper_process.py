"""The helper as a process: TLS, kills, restarts, and a server that waits for it."""

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from configs import composed
from fake_grid import FakeGrid
from flwr.app import Context, Message
from helpers import Recorder
from secure_world import TERMS, masked, request, vectors

from fl_app import client_app
from fl_app.core.errors import RunError
from fl_app.core.types import Update
from fl_app.field.make import add_helper, new_kit
from fl_app.field.processes import free_ports
from fl_app.node.handler import MessageHandler
from fl_app.runner.components import build_components
from fl_app.runner.factory import build_engine
from fl_app.runner.validate import validate_config
from fl_app.secure.folder import _keys_in, server_context
from fl_app.secure.remote import RemoteHelper
from fl_app.secure.request import Refused

pytestmark = pytest.mark.slow


class Party:
    """The helper's process, in the folder of a kit."""

    def __init__(self, kit: Path, port: int) -> None:
        self.kit = kit
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["helper", "--host", "127.0.0.1", "--port", str(self.port), "--min-clients", "3"]
        command = [sys.executable, "-m", "fl_app.field", *words, str(self.kit / "helper")]
        self._process = subprocess.Popen(command)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remote(self, patience: float = 50.0) -> RemoteHelper:
        context = server_context(self.kit / "server")
        return RemoteHelper(f"localhost:{self.port}", context=context, patience=patience)


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Party]:
    kit, (port,) = tmp_path_factory.mktemp("party") / "kit", free_ports(1)
    new_kit(kit, nodes=5, hosts=["localhost"])
    add_helper(kit, ["localhost"], port=port, least=3)
    made = Party(kit, port)
    made.start()
    yield made
    made.kill()


def uploads(party: Party, sequence: int = 0, count: int = 5) -> list[Update]:
    def keys(client: int) -> Any:
        return _keys_in.__wrapped__(party.kit / f"node-{client}")

    plain = vectors(count, seed=sequence)
    return [masked(v, i, sequence=sequence, keys=keys) for i, v in enumerate(plain)]


def opened(party: Party, mine: list[Update], tells: RemoteHelper | None = None) -> np.ndarray:
    total = sum(update.vector.view(np.uint32) for update in mine)
    masks = (tells or party.remote()).sum(request(mine))
    return (total - masks).view(np.int32) / TERMS.scale


def test_devices_and_helper_of_a_kit_come_to_the_sum(party: Party) -> None:
    assert np.abs(opened(party, uploads(party)) - sum(vectors(5))).max() < 5 / TERMS.scale


def test_killed_and_started_again_it_answers_the_same_and_uses_nothing_twice(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = uploads(party, sequence=1)
    before = party.remote().sum(request(mine[:4]))
    party.kill()
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            party.start()
        threading.Event().wait(seconds)

    # The server waits for it, and goes on when it is back.
    with monkeypatch.context() as patched:
        patched.setattr("fl_app.secure.remote.time.sleep", pause)
        again = party.remote().sum(request(mine[:4]))
    assert (again == before).all()
    assert len(waits) >= 2
    with pytest.raises(Refused, match="3 seeds were used before") as caught:
        party.remote().sum(request(mine[1:]))
    assert caught.value.members.keys() == {0, 1, 2}


def test_a_server_waits_for_its_patience_and_no_longer(party: Party) -> None:
    nowhere = Party(party.kit, free_ports(1)[0]).remote(patience=1.0)
    with pytest.raises(RunError, match=r"has not answered for 2 s, and .*patience=1"):
        nowhere.sum(request(uploads(party, sequence=2)))


def test_it_answers_no_stranger_and_no_nonsense(party: Party) -> None:
    party.remote().sum(request(uploads(party, sequence=3)))  # it is there
    url = f"https://localhost:{party.port}"
    trusted = party.kit / "ca" / "ca.crt"
    stranger = ssl.create_default_context(cafile=trusted)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health", verify=stranger, trust_env=False)
    context = server_context(party.kit / "server")
    for body in (b"", b"[]", b"\xff", b'{"terms": 1, "version": 1, "weighting": 1, "members": 1}'):
        answer = httpx.post(f"{url}/sum", content=body, verify=context, trust_env=False)
        assert answer.status_code == 400
    assert httpx.get(f"{url}/health", verify=context, trust_env=False).status_code == 200


def test_a_run_through_flowers_messages(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes with the keys of their folders, the helper's process, and messages as they travel."""
    one_at_a_time = threading.Lock()
    handlers: dict[int, MessageHandler] = {}

    def node(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        with one_at_a_time:  # they share this process, and so its environment
            _keys_in.cache_clear()
            monkeypatch.setenv("FL_APP_KIT", str(party.kit / f"node-{partition}"))
            if message.metadata.message_type == "query":
                return client_app.query(message, context)
            return handlers.setdefault(partition, MessageHandler()).handle(message, context)

    context = server_context(party.kit / "server")
    monkeypatch.setattr("fl_app.secure.folder.server_context", lambda folder: context)
    monkeypatch.setenv("FL_APP_KIT", "that of each node is set with its order")
    config = composed(
        *("runtime=deployment", "num_clients=5", "num_versions=4", "partition=iid"),
        *("secure_aggregation=helper", "secure_aggregation.clip_norm=5", "deadline=60"),
        *("algorithm.schedule.buffer_size=3", "algorithm.schedule.concurrency=5"),
        f"secure_aggregation.address=localhost:{party.port}",
    )
    validate_config(config)
    recorder = Recorder()
    grid = FakeGrid(node, 5)
    components = build_components(config)
    engine = build_engine(components, sinks=[recorder], grid=grid, run="abc")
    before = set(threading.enumerate())
    outcome = engine.run()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)  # nodes still carry out orders of which the run needs no reply
    assert outcome.stopped == "num_versions"
    assert recorder.history.failures == recorder.history.rejected == 0
    events = [e for e in recorder.events if e["kind"] == "aggregate"]
    assert len(events) == 4
    assert all(len(set(event["client"])) == 3 for event in events)
    accuracies = [e["accuracy"] for e in recorder.events if e["kind"] == "evaluate"]
    assert accuracies[-1] > accuracies[0]
