"""A machine without torch, in processes in which importing torch fails."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from configs import composed
from fake_grid import FakeGrid
from flwr.app import Message
from flwr.common.serde import message_to_proto
from omegaconf import OmegaConf

from fl_app import client_app
from fl_app.client import initial_vector
from fl_app.client.build import build_task, build_trainer
from fl_app.core.types import Order
from fl_app.flower import names, wire

NODE = """
import sys
sys.modules["torch"] = None
import json
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message

from fl_app import client_app

folder = Path(sys.argv[1])
for path in map(Path, sys.argv[2:]):
    order = message_from_proto(Message.FromString(path.read_bytes()))
    config = {"partition-id": 1, "state-dir": str(folder)}
    reply = client_app.app(order, Context(1, 5, config, RecordDict(), {}))
    assert reply.has_content(), reply.error
    path.with_suffix(".reply").write_bytes(message_to_proto(reply).SerializeToString())
heavy = ("torch", "torchvision", "torchmetrics", "pandas", "sklearn", "scipy", "PIL")
print(json.dumps([name for name in heavy if sys.modules.get(name) is not None]))
"""


def replies(folder: Path, *contents: tuple[str, object]) -> list[Message]:
    """What a node without torch answers to messages of a type and with a content."""
    from flwr.common.serde import message_from_proto
    from flwr.proto.message_pb2 import Message as ProtoMessage

    FakeGrid(client_app.app, 0)  # gives this process the identity of a ServerApp
    paths = []
    for place, (kind, content) in enumerate(contents):
        message = Message(content, dst_node_id=5, message_type=kind)
        paths.append(folder / f"message{place}")
        paths[-1].write_bytes(message_to_proto(message).SerializeToString())
    words = [sys.executable, "-c", NODE, str(folder), *map(str, paths)]
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == []
    found = [ProtoMessage.FromString(path.with_suffix(".reply").read_bytes()) for path in paths]
    return [message_from_proto(each) for each in found]


def test_a_node_introduces_itself_trains_and_evaluates(tmp_path: Path) -> None:
    """Its uploads are those that torch computes, also the second one, which needs the state."""
    settings = ("algorithm=scaffold", "runtime=deployment", "num_clients=20", "task.holdout=0.2")
    config = composed(*settings)
    vector, layout = initial_vector(build_task(config), config.seed)
    packer = wire.OrderPacker(layout, {names.APP_CONFIG: OmegaConf.to_yaml(config, resolve=True)})
    extra = {"control": np.full_like(vector, 0.001)}
    orders = [Order(n, 1, n, n, vector, {}, 0.0, extra=extra) for n in range(2)]
    evaluation = Order(2, 1, 2, 0, vector, {}, 0.0, evaluates=True)
    hello, *uploads, scores = replies(
        tmp_path,
        ("query", wire.query_record()),
        *(("train", packer.pack(order, packed=True)) for order in orders),
        ("evaluate", packer.pack(evaluation)),
    )
    assert wire.lacks_torch(hello)
    assert wire.partition_of(hello) == 1
    trainer, state = build_trainer(config), {}
    for order, reply in zip(orders, uploads, strict=True):
        upload = wire.unpack_reply(reply, layout)
        expected = trainer.train(Order(0, 1, order.sequence, 0, vector, {}, 0.0, state, extra))
        state = expected.state
        np.testing.assert_allclose(upload.vector, expected.vector, rtol=1e-3, atol=2e-5)
        assert upload.loss == np.float32(expected.loss) or abs(upload.loss - expected.loss) < 1e-4
        assert upload.num_examples == expected.num_examples
    found = wire.unpack_scores(scores)
    expected_scores = trainer.score(evaluation)
    assert found.num_examples == expected_scores.num_examples
    np.testing.assert_allclose(found.metrics["loss"], expected_scores.metrics["loss"], rtol=1e-4)


COMMAND = """
import sys
sys.modules["torch"] = None
from fl_app.__main__ import main
status = main()
assert sys.modules["torch"] is None
sys.exit(status)
"""


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-c", COMMAND, f"hydra.run.dir={folder}", *words)
    return subprocess.run(words, capture_output=True, text=True)


@pytest.mark.slow  # whole commands
@pytest.mark.timeout(300)
def test_a_simulation_on_a_machine_without_torch(tmp_path: Path) -> None:
    """Auto is NumPy there; two workers give the log of none."""
    words = ("algorithm=fedbuff", "num_versions=6", "num_clients=10", "tensorboard=false")
    logs, models = [], []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        done = command(folder, *words, f"runtime.workers={workers}")
        assert done.returncode == 0, done.stdout + done.stderr
        logs.append((folder / "events.jsonl").read_bytes())
        with np.load(folder / "model.npz") as arrays:
            models.append({name: arrays[name] for name in arrays.files})
    assert logs[0] == logs[1]
    assert models[0].keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}
    for name, array in models[0].items():
        np.testing.assert_array_equal(array, models[1][name])


@pytest.mark.slow
def test_it_refuses_a_run_that_needs_torch(tmp_path: Path) -> None:
    done = command(tmp_path, "runtime.backend=torch")
    assert done.returncode == 2
    assert "runtime.backend=torch must be auto or numpy here: torch is not installed" in done.stderr
