"""Orders to nodes with their own data, or with their own frozen parameters."""

import json
import os
import time

import numpy as np
import pytest
from fake_grid import FakeGrid, through
from flwr.app import Context, Message, RecordDict
from helpers import AGE, initial_vector, make_config, schema
from omegaconf import DictConfig, OmegaConf

from fl_app import client_app
from fl_app.client.build import build_task, build_trainer
from fl_app.client.initial import build_model
from fl_app.core.types import Order
from fl_app.flower import codec, names
from fl_app.node import memory
from fl_app.node.handler import MessageHandler

NODE = 2**63 + 5
SCHEMA = json.dumps(schema(AGE, ("pulse", 70.0, 10.0)))
CONFIG = f"""
seed: 3
num_clients: null
runtime: {{device: cpu}}
task:
  _target_: fl_app.tasks.readers.Csv
  model: logistic
  path: null
  test_share: 0.2
  schema: '{SCHEMA}'
  holdout: 0.25
partition: {{_target_: fl_app.tasks.partition.dirichlet.Dirichlet, alpha: 0.1}}
algorithm:
  client: {{_target_: fl_app.client.LocalTrainer, upload: pseudo, local_lr: 0.1, batch_size: 4}}
"""


@pytest.fixture(autouse=True)
def _process(tmp_path, monkeypatch):
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    FakeGrid(client_app.app, 0)  # gives this process the identity of a ServerApp
    client_app.handler = MessageHandler()


def config(text=CONFIG):
    result = OmegaConf.create(text)
    assert isinstance(result, DictConfig)
    return result


VECTOR, LAYOUT = initial_vector(build_task(config()), seed=3)


def table(path, rows, label=None, head="age,pulse,ill"):
    lines = [f"{20 + i},{60 + 2 * i},{label or ('no', 'yes')[i % 2]}" for i in range(rows)]
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def ask(kind, content, node_config):
    """The ClientApp's reply; both messages are serialised."""
    message = through(Message(content, dst_node_id=NODE, message_type=kind))
    return through(client_app.app(message, Context(1, NODE, node_config, RecordDict(), {})))


def order(client_id=NODE, text=CONFIG, run="r1"):
    packer = codec.OrderPacker(LAYOUT, {names.APP_CONFIG: text, names.RUN: run})
    return packer.pack(Order(0, client_id, 2, 7, VECTOR, {}, 0.0))


def test_a_node_trains_on_all_of_its_own_data_and_on_nothing_else(tmp_path):
    """A quarter of 20 rows is held out; random draws depend on the client's id, not on an index."""
    path = str(table(tmp_path / "a.csv", 20))
    for node_config, client_id in (({}, NODE), ({"partition-id": 4}, 4)):
        reply = ask("train", order(), {"data": path, **node_config})
        upload = codec.read_upload(reply, LAYOUT)
        assert upload.num_examples == 15
        trainer = build_trainer(config(), build_task(config(), data=path))
        expected = trainer.train(Order(0, client_id, 2, 7, VECTOR, {}, 0.0))
        np.testing.assert_array_equal(upload.vector, expected.vector)
        reply = ask("evaluate", order(), {"data": path, **node_config})
        assert reply.content["metrics"]["num-examples"] == 5


def test_state_is_kept_under_the_id_by_which_the_server_knows_the_node(tmp_path):
    text = CONFIG.replace("client.LocalTrainer", "algorithms.feddyn.trainer.FedDynTrainer")
    path = str(table(tmp_path / "a.csv", 20))
    packer = codec.OrderPacker(
        LAYOUT, {names.APP_CONFIG: text, names.RUN: "r1", "regularisation": 0.1}
    )
    for node_config in ({}, {"partition-id": 4}):
        content = packer.pack(Order(0, NODE, 2, 7, VECTOR, {}, 0.0))
        assert ask("train", content, {"data": path, **node_config}).has_content()
    files = {file.name for file in (tmp_path / "state" / "run-r1").iterdir()}
    assert files == {f"client-{NODE}.npz", "client-4.npz"}


def test_a_new_run_reads_the_data_again(tmp_path):
    """Within a run the data stay in memory, so that all orders train on the same examples."""
    path = table(tmp_path / "a.csv", 20)
    counts = []
    for rows, run in ((20, "r1"), (40, "r1"), (40, "r2")):
        table(path, rows)
        reply = ask("train", order(run=run), {"data": str(path)})
        counts.append(codec.read_upload(reply, LAYOUT).num_examples)
    assert counts == [15, 15, 30]


def refusal(node_config, text=CONFIG):
    return ask("train", order(text=text), node_config).error.reason


def test_no_data(tmp_path, monkeypatch):
    missing = refusal({"data": str(tmp_path / "secret-name.csv")})
    assert missing.startswith("ValueError: this node's own data cannot be found (No such file or")
    assert "DATA in its node.env" in missing
    assert "secret-name" not in missing
    none = "ValueError: this node has no data, and the run brings none: name its data, as DATA="
    assert refusal({"partition-id": 0}).startswith(none)
    assert "has no partition-id: start it with" in refusal({})
    digits = OmegaConf.to_yaml(make_config("runtime=deployment", "num_clients=3"), resolve=True)
    monkeypatch.setenv("FL_APP_KIT", str(tmp_path))
    (tmp_path / "helper.pub").touch()
    assert "this node's kit has a helper, so it masks" in refusal({"partition-id": 0}, digits)
    (tmp_path / "helper.pub").unlink()
    lacks = "partition-id=3 must be below num_clients=3 of the run: the run has no data for this"
    assert lacks in refusal({"partition-id": 3}, digits)


def test_too_few(tmp_path):
    reason = refusal({"data": str(table(tmp_path / "a.csv", 1))})
    assert "too few: there are 1, and a client needs at least 2 with task.holdout > 0" in reason
    one = CONFIG.replace("holdout: 0.25", "holdout: 0.0")
    assert ask("train", order(text=one), {"data": str(tmp_path / "a.csv")}).has_content()


@pytest.mark.parametrize(
    ("content", "log"),
    [
        ("age,pulse,ill\n30,70,perhaps-smith\n31,71,no\n", "perhaps-smith"),
        ("age,pulse,ill\nsmith,70,no\n31,71,no\n", "smith"),
        ("age,ill\n30,no\n31,yes\n", "pulse"),
        (b"\x00\xff\xfe\x00PK", "a.csv"),
    ],
)
def test_errors_of_data_that_do_not_fit_do_not_quote_them(tmp_path, caplog, content, log):
    """The server learns that they cannot be read; only the node's log has the reason."""
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    reason = refusal({"data": str(path)})
    assert "cannot be read as task=csv with the run's schema: the node's log says why" in reason
    assert log not in reason
    assert log in caplog.text


def test_a_run_that_cannot_read_data_of_a_nodes_own(tmp_path):
    node_config = {"data": str(table(tmp_path / "a.csv", 20)), "partition-id": 0}
    text = CONFIG.replace(f"schema: '{SCHEMA}'", "schema: null")
    assert "task.schema=null must be a schema where nodes have data of" in refusal(
        node_config, text
    )
    other = config()
    other.task = {"_target_": "fl_app.tasks.images.Digits"}
    reason = refusal(node_config, OmegaConf.to_yaml(other))
    assert "_target_=fl_app.tasks.images.Digits reads no data of a node's own" in reason


# -- frozen parameters that differ from the server's -----------------------------------------------

SETTINGS = ("num_clients=4", "algorithm.client.local_steps=1", "task.weights=absent.npz")
HEAD = "task.trainable=[3.*]"  # of the perceptron, whose other parameters are frozen
OWN = "algorithm.client.private=[3.*]"


def reply_to(model, config):
    """The reply of a node with a model of seed 0 to an order of a server with this model."""
    keys = {names.APP_CONFIG: OmegaConf.to_yaml(config, resolve=True), names.RUN: "7"}
    if model.traces:
        keys[names.FROZEN] = model.traces
    content = codec.OrderPacker(model.layout, keys).pack(Order(0, 1, 0, 0, model.read(), {}, 0.0))
    context = Context(1, 5, {"partition-id": 1}, RecordDict(), {})
    return MessageHandler().handle(Message(content, dst_node_id=5, message_type="train"), context)


@pytest.mark.parametrize(
    ("more", "seed", "error"),
    [
        ((), 1, ""),  # nothing is frozen; trained parameters come with the order
        ((HEAD,), 0, ""),
        ((HEAD,), 1, "the frozen or private parameters 1.weight, 1.bias are not the server's: "),
        ((OWN,), 0, ""),
        ((OWN,), 1, "the frozen or private parameters 3.weight, 3.bias are not the server's: "),
    ],
)
def test_a_node_does_not_train_with_other_frozen_or_private_parameters(more, seed, error):
    config = make_config(*SETTINGS, *more)
    task = build_task(make_config(*SETTINGS[:-1], *more))
    private = config.algorithm.client.get("private")
    reply = reply_to(build_model(task, seed, private=private), config)
    assert reply.has_error() == bool(error)
    assert not error or error in reply.error.reason


# -- memory of a client ----------------------------------------------------------------------------


def folder_of(run, **node_config):
    return memory.folder_of(Context(1, 5, {**node_config}, RecordDict(), {}), run)


def test_memories_are_loaded_and_replaced_as_a_whole(tmp_path):
    path = tmp_path / "run-7" / "client-3.npz"
    assert memory.load(path) == {}
    memory.save(path, {"slot": np.array(2), "model": np.arange(3.0)})
    memory.save(path, {"slot": np.array(4)})
    assert {name: int(array) for name, array in memory.load(path).items()} == {"slot": 4}
    assert [each.name for each in path.parent.iterdir()] == ["client-3.npz"]
    with pytest.raises(ValueError, match="allow_pickle=False"):  # the old file stays
        memory.save(path, {"slot": np.array(2), "evil": np.array([print], dtype=object)})
    assert memory.load(path)["slot"] == 4
    memory.save(path, {})
    assert memory.load(path) == {}


def test_the_folder_of_memories(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FL_APP_STATE_DIR", raising=False)
    assert folder_of("7") == tmp_path / "home" / "fl_app" / "run-7"
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path / "set"))
    assert folder_of("7") == tmp_path / "set" / "run-7"
    assert folder_of("7", **{"state-dir": str(tmp_path)}) == tmp_path / "run-7"
    with pytest.raises(ValueError, match=r"run=\.\./\.\. must be letters and digits"):
        folder_of("../..")


def test_a_new_run_removes_memories_of_old_runs(tmp_path):
    def save(run, age):
        path = tmp_path / f"run-{run}" / "client-0.npz"
        memory.save(path, {"slot": np.array(1)})
        path.with_name("client-0.npz.tmp").touch()  # its writer was killed
        os.utime(path.parent, (time.time() - age,) * 2)
        return path.parent

    old, recent = save("1", 8 * 86400.0), save("2", 6 * 86400.0)
    results = tmp_path / "run-results"  # the user's
    results.mkdir()
    (results / "table.csv").touch()
    os.utime(results, (0, 0))
    (link := tmp_path / "run-4").symlink_to("nowhere")  # another node removes it meanwhile
    new = save("3", 0.0)
    assert {*tmp_path.iterdir()} == {recent, results, link, new}
    assert (results / "table.csv").exists()
    assert not old.exists()


def write_pickle(path):
    np.savez(path, evil=np.array([print], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:150]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"not a zip"),
        write_pickle,
    ],
)
def test_an_unreadable_file_counts_as_none(tmp_path, caplog, spoil):
    path = tmp_path / "client-0.npz"
    memory.save(path, {"model": np.arange(100.0)})
    spoil(path)
    assert memory.load(path) == {}
    assert "this client starts without it" in caplog.text
    memory.save(path, {"slot": np.array(1)})
    assert memory.load(path).keys() == {"slot"}
