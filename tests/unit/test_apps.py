"""The ClientApp and the ServerApp."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid, through
from flwr.app import Context, Message, RecordDict
from helpers import order_for, python
from omegaconf import OmegaConf

from fl_app import client_app, server_app
from fl_app.client.build import build_task, build_trainer, chain
from fl_app.core.types import Order
from fl_app.flower import codec
from fl_app.node.handler import MessageHandler

CONFIG = """
seed: 3
num_clients: 4
runtime: {device: cpu}
task:
  _target_: fl_app.tasks.images.Digits
  model: logistic
partition: {_target_: fl_app.tasks.partition.Iid, max_size: 10}
algorithm:
  client: {_target_: fl_app.client.LocalTrainer, upload: pseudo, local_lr: 0.1, batch_size: 4}
"""


def trainer_of(text):
    config = OmegaConf.create(text)
    return build_trainer(config, build_task(config))


TRAINER = trainer_of(CONFIG)
LAYOUT = TRAINER.model.layout
VECTOR = np.linspace(-1, 1, LAYOUT.size, dtype=np.float32)


@pytest.fixture(autouse=True)
def _process():
    FakeGrid(client_app.app, 0)  # gives this process the identity of a ServerApp
    threads = torch.get_num_threads()
    client_app.handler = MessageHandler()
    yield
    torch.set_num_threads(threads)


def ask(kind, content, node_config=None):
    """The ClientApp's reply; both messages are serialised."""
    return through(client_app.app(message(kind, content), context(node_config)))


def message(kind, content):
    return through(Message(content, dst_node_id=5, message_type=kind))


def context(node_config=None):
    return Context(1, 5, node_config or {}, RecordDict(), {})


def order(client_id, vector=VECTOR, **config):
    packer = codec.OrderPacker(LAYOUT, {"app-config": CONFIG, **config})
    return packer.pack(Order(0, client_id, 2, 7, vector, {}, 0.0))


def test_any_node_trains_for_the_client_that_the_order_names():
    reply = ask("train", order(3, **{"any-node": True}), {"partition-id": 1})
    upload = codec.read_upload(reply, LAYOUT)
    expected = TRAINER.train(order_for(3, 2, VECTOR, {}))
    np.testing.assert_array_equal(upload.vector, expected.vector)
    assert upload == type(upload)(**{f: getattr(expected, f) for f in FIELDS}, vector=upload.vector)
    assert torch.get_num_threads() == 1


FIELDS = ("kind", "num_examples", "loss", "rate_sum", "metrics", "done")


def test_a_real_node_trains_on_its_own_partition():
    torch.set_num_threads(2)
    reply = ask("train", order(client_id=2**63 + 1), {"partition-id": 1})
    upload = codec.read_upload(reply, LAYOUT)
    np.testing.assert_array_equal(upload.vector, TRAINER.train(order_for(1, 2, VECTOR, {})).vector)
    assert torch.get_num_threads() == 2, "a device's cores are its own business"


def test_a_real_node_logs_a_line_for_an_order(caplog):
    caplog.set_level("INFO", "flwr")
    for kind in ("train", "evaluate"):
        client_app.handler.handle(message(kind, order(1)), context({"partition-id": 1}))
        client_app.handler.handle(message(kind, order(1, **{"any-node": True})), context())
    messages = [re.sub(r"\d+\.\d+", "N", record.getMessage()) for record in caplog.records]
    ending = "order from version 7 done in N s"
    assert messages == [
        f"client 1: {each} {ending}: 10 examples, loss N" for each in ("train", "evaluate")
    ]


def test_the_error_of_a_node_without_partition_has_a_remedy():
    for kind in ("train", "evaluate"):
        assert ask(kind, order(2)).error.reason.startswith(
            "ValueError: this node has no partition-id: start it with --node-config"
        )


def test_an_order_without_configuration_is_refused():
    reason = ask("evaluate", RecordDict(), {"partition-id": 1}).error.reason
    assert "carries no app-config: the server must send" in reason


def test_the_trainer_is_built_once_per_configuration():
    trainers = []
    for client_id, seed in ((0, 3), (1, 3), (0, 3), (0, 4)):
        config = {"app-config": CONFIG.replace("seed: 3", f"seed: {seed}")}
        ask("train", order(client_id, **{"any-node": True}, **config))
        trainers.append(client_app.handler._client)
    assert trainers[0] is trainers[1] is trainers[2]
    assert trainers[3] is not trainers[0]


def test_failures_have_the_messages_of_the_other_runtimes():
    bad = order(0, **{"any-node": True})
    bad["arrays"]["stranger"] = bad["arrays"]["vector"]
    reply = ask("train", bad)
    assert reply.error.reason.startswith("ValueError: arrays do not fit the model: got vector, st")


FEDPER = CONFIG.replace("batch_size: 4", 'batch_size: 4, private: ["*.bias"]')


def test_a_device_evaluates_with_its_private_parameters(tmp_path, monkeypatch):
    """Also in a new process, which reads them from a file; evaluation does not change them."""
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    trainer = trainer_of(FEDPER)
    vector = VECTOR[: trainer.model.layout.size]
    packer = codec.OrderPacker(trainer.model.layout, {"app-config": FEDPER})
    request = Order(0, 1, 2, 7, vector, {}, 0.0)
    before = trainer.score(replace(request, evaluates=True))
    ask("train", packer.pack(request), {"partition-id": 1})
    state = chain(trainer).train(request).state
    expected = chain(trainer).score(replace(request, evaluates=True, state=state))
    assert expected != before
    for _ in range(2):
        client_app.handler = MessageHandler()
        reply = ask("evaluate", packer.pack(replace(request, evaluates=True)), {"partition-id": 1})
        assert codec.read_scores(reply) == expected


def test_introduction_is_light():
    reply = ask("query", RecordDict(), {"partition-id": 2})
    assert dict(reply.content["metrics"]) == {"partition-id": 2}
    assert dict(ask("query", RecordDict()).content["metrics"]) == {}
    code = "import sys, fl_app.client_app; print('torch' in sys.modules)"
    assert python("-c", code).stdout.strip() == "False"


FEDDYN = CONFIG.replace("client.LocalTrainer", "algorithms.feddyn.trainer.FedDynTrainer")


@pytest.mark.parametrize("warm", [True, False])
def test_a_device_whose_training_diverged_continues_from_its_earlier_state(
    tmp_path, monkeypatch, warm
):
    """The second of three orders has a rate at which weights overflow."""
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    settings = {"app-config": FEDDYN, "regularisation": 0.1}
    finite = []
    for factor in (1.0, 1e38, 1.0):
        if not warm:
            client_app.handler = MessageHandler()
        content = order(1, **settings, local_lr_factor=factor)
        reply = ask("train", content, {"partition-id": 1})
        upload = codec.read_upload(reply, LAYOUT)
        finite.append(bool(np.isfinite(upload.vector).all()))
    assert finite == [True, False, True]


OVERLAP = CONFIG.replace("client.LocalTrainer", "algorithms.overlap_fedavg.trainer.OverlapTrainer")


def test_a_node_works_ahead_between_two_orders(tmp_path, monkeypatch, caplog):
    """10 examples in batches of 4: 3 steps an epoch, each of rate 0.1."""
    settings = {"app-config": OVERLAP, "max_local_epochs": 5}
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    calls = []

    def until():
        calls.append(True)
        return len(calls) == 2

    client_app.handler.work_ahead(until)  # nothing was received yet
    uploads = []
    for _ in range(2):
        reply = ask("train", order(1, **settings), {"partition-id": 1})
        uploads.append(codec.read_upload(reply, LAYOUT))
        client_app.handler.work_ahead(until)
    assert uploads[0].rate_sum == pytest.approx(0.3)
    assert len(calls) >= 2
    assert uploads[1].rate_sum == pytest.approx(0.3 * 2)
    assert [upload.base_version for upload in uploads] == [7, 7]
    ask("train", order(1, **settings), {"partition-id": 1})
    client_app.handler.work_ahead(lambda: 1 / 0 > 0)
    assert "training ahead of the next order failed" in caplog.text
    reply = ask("train", order(1, **settings), {"partition-id": 1})
    assert codec.read_upload(reply, LAYOUT).rate_sum == pytest.approx(0.3)


SCAFFOLD = CONFIG.replace(
    "client.LocalTrainer", "algorithms.scaffold.trainer.SCAFFOLDTrainer"
).replace("pseudo", "delta")


@pytest.mark.parametrize("settings", ["", ", upload_dtype: float16"])
def test_vectors_beside_the_model_arrive_as_they_do_without_flower(settings):
    config = SCAFFOLD.replace(", batch_size: 4", f", batch_size: 4{settings}")
    packer = codec.OrderPacker(LAYOUT, {"app-config": config, "any-node": True})
    trainer, states = trainer_of(config), [{}, {}]
    for sequence in range(2):
        extra = {"control": VECTOR / 3}
        request = Order(0, 3, sequence, 7, VECTOR, {}, 0.0, states[0], extra)
        upload = codec.read_upload(ask("train", packer.pack(request)), LAYOUT)
        expected = chain(trainer).train(
            order_for(3, sequence, VECTOR, {}, states[1], {"control": VECTOR / 3})
        )
        assert upload.vector.tobytes() == expected.vector.tobytes()
        assert upload.extra["control"].tobytes() == expected.extra["control"].tobytes()
        assert np.any(upload.extra["control"])
        states = [dict(upload.state), dict(expected.state)]
        assert states[0].keys() == states[1].keys()


# -- the server ------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEFAULTS = PROJECT["tool"]["flwr"]["app"]["config"]


def server_context(**run_config):
    """A context as Flower makes it; Flower refuses keys that are not in pyproject.toml."""
    config = {key.replace("_", "-"): value for key, value in run_config.items()}
    assert config.keys() <= DEFAULTS.keys()
    return Context(1, 1, {}, RecordDict(), {**DEFAULTS, **config})


def test_a_plain_run_is_short_and_keys_or_overrides_end_that():
    def overrides_of(**run_config):
        return server_app.overrides_of(server_context(**run_config).run_config)

    short = ["num_versions=null", "max_updates=250"]
    assert overrides_of() == [*short, "runtime=flower"]
    assert overrides_of(algorithm="fedasync", seed=0) == [
        *("algorithm=fedasync", "seed=0", *short, "runtime=flower")
    ]
    assert overrides_of(num_versions=9) == ["num_versions=9", "runtime=flower"]
    assert overrides_of(overrides="num_versions=9", num_versions=8) == [
        *("num_versions=8", "num_versions=9", "runtime=flower")
    ]
    assert overrides_of(overrides="runtime=deployment 'task.trainable=[a, b]'") == [
        *("runtime=deployment", "task.trainable=[a, b]")
    ]


QUICK = "num_versions=2 algorithm.client.local_steps=1 task.made_up=true"


def test_keys_of_flower_mean_those_of_the_configuration(tmp_path, logs):
    keys = {"algorithm": "fedasync", "task": "mnist", "num_clients": 12, "seed": 3}
    run = server_context(**keys, num_versions=4, output=str(tmp_path), overrides=QUICK)
    server_app.main(FakeGrid(client_app.app, 2), run)
    config = OmegaConf.load(tmp_path / "config.yaml")
    assert (config.algorithm.name, config.num_clients, config.seed) == ("fedasync", 12, 3)
    assert config.task._target_.endswith(".Images")
    assert json.loads((tmp_path / "summary.json").read_text())["num_versions"] == 2
    assert str(tmp_path) in logs.messages[-1]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"overrides": "num_clientz=3"}, r"unknown key 'num_clientz'.*num_clients"),
        ({"algorithm": "fedbuf"}, r"algorithm=fedbuf does not exist; did you mean fedbuff"),
        ({"num_clients": -3}, r"num_clients=-3 must be .* 1"),
        ({"seed": "three"}, r"seed=.*three"),
        (
            {"overrides": "runtime=deployment num_clients=3 algorithm.schedule.concurrency=5"},
            "concurrency=5 must be at most num_clients=3",
        ),
        ({"overrides": "runtime=deployment partition=none"}, "partition=none does not exist"),
        ({"overrides": "hydra.run.dir=x num_versions=2"}, "overrides=hydra.run.dir=x must be free"),
        (
            {"overrides": "algorithm=fedavg_k algorithm.client.local_epochs=3"},
            "local_epochs would change nothing: .*local_steps=10 takes",
        ),
    ],
)
def test_bad_values_are_refused_as_by_the_command_line(tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        server_app.main(FakeGrid(client_app.app, 1), server_context(**keys, output=str(tmp_path)))
    assert (tmp_path / "refused.txt").exists() == ("deployment" in keys.get("overrides", ""))
