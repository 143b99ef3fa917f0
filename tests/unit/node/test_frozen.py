"""A node whose frozen parameters are not the server's."""

import pytest
import torch
from configs import composed
from fake_grid import FakeGrid
from flwr.app import Context, Message, RecordDict
from omegaconf import OmegaConf

from fl_app import client_app
from fl_app.client.build import build_task
from fl_app.client.initial import build_model
from fl_app.core.types import Order
from fl_app.flower import codec, names
from fl_app.node.handler import MessageHandler

SETTINGS = ("num_clients=4", "algorithm.client.local_steps=1", "task.weights=absent.npz")
HEAD = "task.trainable=[3.*]"  # of the perceptron, whose other parameters are frozen


@pytest.fixture(autouse=True)
def _process(monkeypatch, tmp_path):
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    FakeGrid(client_app.app, 0)  # gives this process the identity of a ServerApp
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def reply_to(model, config):
    """What a node says to an order of a server with this model; the node's is of seed 0."""
    told = {names.APP_CONFIG: OmegaConf.to_yaml(config, resolve=True), names.RUN: "7"}
    if model.frozen:
        told[names.FROZEN] = model.traces
    content = codec.OrderPacker(model.layout, told).pack(Order(0, 1, 0, 0, model.read(), {}, 0.0))
    context = Context(1, 5, {"partition-id": 1}, RecordDict(), {})
    return MessageHandler().handle(Message(content, dst_node_id=5, message_type="train"), context)


@pytest.mark.parametrize(
    ("more", "seed", "error"),
    [
        ((), 1, ""),  # nothing is frozen: what is trained comes with the order
        ((HEAD,), 0, ""),
        (
            (HEAD,),
            1,
            "frozen parameters 1.weight, 1.bias are not the server's: this node needs",
        ),
    ],
)
def test_a_node_does_not_train_beside_other_frozen_parameters(more, seed, error):
    config = composed(*SETTINGS, *more)
    task = build_task(composed(*SETTINGS[:-1], *more))
    reply = reply_to(build_model(task, seed), config)
    assert reply.has_error() == bool(error)
    assert not error or error in reply.error.reason
