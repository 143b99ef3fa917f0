"""What a node loads: nothing of the server, of the report or of its plots."""

import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from configs import composed
from fake_grid import FakeGrid
from flwr.app import Message, RecordDict
from flwr.common.serde import message_to_proto
from omegaconf import OmegaConf

from fl_app import client_app
from fl_app.client import initial_vector
from fl_app.client.build import build_task
from fl_app.core.extras import EXTRAS
from fl_app.core.types import Order
from fl_app.flower import codec, names

SERVER = {
    "fl_app.engine",
    "fl_app.flower.grid",
    "fl_app.flower.orders",
    "fl_app.flower.nodes",
    "fl_app.record",
    "fl_app.report",
    "fl_app.runner",
}
ALGORITHM = {"fl_app.schedule", "fl_app.strategy"}
PLOTS = {"altair", "pandas", "vl_convert"}
ABSENT = EXTRAS.keys() - {"jinja2", "markupsafe"}  # torch requires these two

NODE = """
import json, sys
from pathlib import Path

sys.modules |= dict.fromkeys(ABSENT)  # as if they were not installed

def present():
    return [name for name, module in sorted(sys.modules.items()) if module]

from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message

from fl_app import client_app

loaded = [present()]
for path in sys.argv[2:]:
    node_config = {"partition-id": 1, "state-dir": sys.argv[1]}
    order = message_from_proto(Message.FromString(Path(path).read_bytes()))
    reply = client_app.app(order, Context(1, 5, node_config, RecordDict(), {}))
    assert reply.has_content(), reply.error
    loaded.append(present())
print(json.dumps(loaded))
"""


def order(name: str, *task: str, num_clients: int = 20) -> RecordDict:
    """A training order of an algorithm, as a real node gets it."""
    settings = (f"num_clients={num_clients}", "algorithm.client.local_steps=1", *task)
    config = composed(f"algorithm={name}", "runtime=deployment", *settings)
    vector, layout = initial_vector(build_task(config), config.seed)
    extra = {"regularisation": 0.1} if name == "feddyn" else {}
    packer = codec.OrderPacker(layout, {names.APP_CONFIG: OmegaConf.to_yaml(config, resolve=True)})
    return packer.pack(Order(0, 5, 0, 0, vector, extra, 0.0))


def loaded(folder: Path, *orders: RecordDict, absent: Collection[str] = ()) -> list[set[str]]:
    """The modules of a node before its first order and after each of them.

    Args:
        folder: for files.
        orders: which it carries out.
        absent: modules that cannot be imported there.
    """
    FakeGrid(client_app.app, 0)  # gives this process the identity of a ServerApp
    paths = []
    for place, content in enumerate(orders):
        message = Message(content, dst_node_id=5, message_type="train")
        paths.append(folder / f"order{place}")
        paths[-1].write_bytes(message_to_proto(message).SerializeToString())
    code = NODE.replace("ABSENT", repr(list(absent)))
    words = [sys.executable, "-c", code, str(folder), *map(str, paths)]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    return [set(names) for names in json.loads(run.stdout.splitlines()[-1])]


def test_a_node_that_trains_loads_nothing_of_the_server(tmp_path: Path) -> None:
    """FedBuff's clients train with LocalTrainer; FedDyn's trainer lies beside its strategy."""
    orders = (order("fedbuff"), order("feddyn"))
    ready, fedbuff, feddyn = loaded(tmp_path, *orders, absent=ABSENT)
    assert (ready & (SERVER | ALGORITHM | PLOTS | {"torch"})) == set()
    assert "fl_app.client.trainer" in fedbuff
    assert (fedbuff & (SERVER | ALGORITHM | PLOTS)) == set()
    assert "fl_app.algorithms.feddyn" in feddyn
    assert (feddyn & (SERVER | PLOTS)) == set()
