"""A node whose model has another fixed part than the server's."""

import numpy as np
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

SETTINGS = ("num_clients=4", "task.trainable=[3.*]", "algorithm.client.local_steps=1")
CONFIG = OmegaConf.to_yaml(composed(*SETTINGS), resolve=True)


@pytest.fixture(autouse=True)
def _process():
    FakeGrid(client_app.app, 0)  # gives this process the identity of a ServerApp
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def server(seed):
    """A model that was built from this seed; nodes build theirs from seed 0."""
    return build_model(build_task(composed(*SETTINGS)), seed)


def ask(handler, model, *, fixed=False, digest=None, kind="train", **more):
    digest = model.fixed_digest if digest is None else digest
    config = {names.APP_CONFIG: CONFIG, names.FIXED: digest, names.RUN: "7"}
    packer = codec.OrderPacker(model.layout, config | more, model.fixed_bytes())
    content = packer.pack(Order(0, 1, 0, 0, model.read(), {}, 0.0), fixed=fixed)
    context = Context(1, 5, {"partition-id": 1}, RecordDict(), {})
    return handler.handle(Message(content, dst_node_id=5, message_type=kind), context)


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    return tmp_path


def test_a_part_that_does_not_fit_is_an_error(state):
    model = server(1)
    reply = ask(MessageHandler(), model, fixed=True, digest=server(2).fixed_digest)
    assert reply.error.reason.startswith(
        "ValueError: SHA-256 of the frozen and private parameters that the server sent="
    )
    assert "server and client do not build the same model" in reply.error.reason
    whole = build_model(build_task(composed("num_clients=4", "task.trainable=[1.*]")), 0)
    packer = codec.OrderPacker(
        model.layout,
        {names.APP_CONFIG: CONFIG, names.FIXED: "0" * 64, names.RUN: "7"},
        whole.fixed_bytes(),
    )
    content = packer.pack(Order(0, 1, 0, 0, model.read(), {}, 0.0), fixed=True)
    context = Context(1, 5, {"partition-id": 1}, RecordDict(), {})
    reply = MessageHandler().handle(Message(content, dst_node_id=5, message_type="train"), context)
    assert (
        "frozen or private parameters do not fit the model: 1.bias, 1.weight" in reply.error.reason
    )
    assert list(state.rglob("fixed-*")) == []


def test_a_file_with_another_part_is_asked_for_again(state):
    model = server(1)
    ask(MessageHandler(), model, fixed=True)
    (file,) = state.rglob("fixed-*.npz")
    np.savez(file, **{"1.weight": np.zeros(3, np.uint8)})
    assert codec.asks_for_fixed(ask(MessageHandler(), model))
    np.savez(file, **{n: np.zeros_like(a) for n, a in model.fixed_bytes().items()})
    assert codec.asks_for_fixed(ask(MessageHandler(), model))
