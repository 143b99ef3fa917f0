"""From configuration to objects: devices, workers, sizes, checkpoints, signals."""

import hashlib
import os
import selectors
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from helpers import HeadedQuadratic, engine_of, make_config

from fl_app.client.build import build_task, build_trainer
from fl_app.record.log import read_events
from fl_app.runner import checkpoint, signals
from fl_app.runner.cell import Plan, run_cell
from fl_app.runner.checkpoint import Checkpoints
from fl_app.runner.components import build_components, message_bytes, placement
from fl_app.runner.factory import server_gradient
from fl_app.runner.validate import validate_config

CORES = len(os.sched_getaffinity(0))
WORKERS = CORES if CORES > 1 else 0


def placement_of(*overrides):
    return placement(make_config(*(f"runtime.{word}" for word in overrides)))


def set_gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("count", "keys", "expected"),
    [
        *((0, [f"device={device}"], ("cpu", WORKERS)) for device in ("cpu", "auto")),
        (0, ["device=auto", "workers=0"], ("cpu", 0)),
        (0, ["device=auto", "workers=3"], ("cpu", 3)),
        (3, ["device=cuda"], ("cuda:0", 0)),
        (3, ["device=auto"], ("cuda:0", 0)),
        (3, ["device=cuda:2", "workers=0"], ("cuda:2", 0)),
        (3, ["device=cpu"], ("cpu", WORKERS)),
        (3, ["device=meta"], ("meta", 0)),  # like any other device
    ],
    ids=str,
)
def test_a_run_trains_where_gpus_are_and_workers(count, keys, expected, monkeypatch):
    set_gpus(monkeypatch, count)
    assert placement_of(*keys) == expected


def test_cores_are_shared_and_one_of_them_needs_no_worker(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for parallel, workers in ((1, 8), (2, 4), (8, 0), (9, 0)):
        assert placement(make_config(f"experiment.parallel={parallel}")) == ("cpu", workers)


def test_the_main_process_of_a_cluster_has_data_that_can_be_sent(monkeypatch):
    set_gpus(monkeypatch, 3)
    assert placement(make_config("runtime=ray", "runtime.device=cuda")) == ("cpu", 0)
    assert placement(make_config("runtime=flower", "runtime.device=cuda:1")) == ("cuda:1", 0)


def test_missing_devices_are_refused_before_anything_is_built(monkeypatch):
    set_gpus(monkeypatch, 0)
    with pytest.raises(ValueError, match=r"^runtime\.device=cuda must be cpu, a device that torch"):
        validate_config(make_config("runtime.device=cuda"))
    with pytest.raises(ValueError, match=r"^runtime\.workers=2 must be auto or 0 here, .*=meta"):
        placement_of("device=meta", "workers=2")


def test_forked_workers_with_a_gpu_are_refused_with_an_alternative(monkeypatch):
    set_gpus(monkeypatch, 2)
    config = make_config("runtime.device=cuda", "runtime.workers=2")
    message = (
        r"^runtime\.workers=2 must be auto or 0 here, .*=cuda:0: .* runtime\.gpus_per_worker=1 has"
    )
    with pytest.raises(ValueError, match=message):
        build_components(config)


def test_obstacles_to_batches_are_logged_once(tmp_path, caplog):
    few = ["num_clients=10", "runtime.workers=0", "algorithm.schedule.concurrency=6"]
    config = make_config("algorithm=fedasmu", "num_versions=1", "runtime.batch=4", *few)
    run_cell(Plan(config), tmp_path, label="test", show=False)
    reason = "FedASMUTrainer has a should_pause of its own"
    message = f"runtime.batch=4: clients are trained one at a time: {reason}"
    assert caplog.messages.count(message) == 1


# -- without training -----------------------------------------------------------------------------

CLIENTS = 12
TASK = HeadedQuadratic.scattered(CLIENTS)
BUSY = ["devices/server=measured", "devices.server.evaluation=0.3", "devices.server.poll=0.2"]


def course(name, train):
    """Kind, second, client, order, version and age of all events, and the final model."""
    config = make_config(
        f"algorithm={name}",
        f"num_clients={CLIENTS}",
        *("num_versions=15", "eval_every=2", "runtime.workers=0", f"runtime.train={train}"),
        *BUSY,
    )
    engine, recorder = engine_of(config, TASK)
    final = engine.run().params.tobytes()
    keys = ("kind", "t", "client", "order", "version", "age")
    return [[event.get(key) for key in keys] for event in recorder.events], final


@pytest.mark.parametrize("name", ["fedasync", "scaffold"])
def test_the_same_happens_at_the_same_time_as_with_training(name):
    (events, model), (others, other_model) = course(name, "true"), course(name, "false")
    assert events == others
    assert model != other_model


def test_a_run_without_training_measures_nothing(tmp_path):
    config = make_config("num_versions=4", "runtime.train=false", "num_clients=10", "eval_every=1")
    _, summary = run_cell(Plan(config), tmp_path / "run", label="untrained", show=False)
    assert (summary["num_versions"], summary["final_accuracy"]) == (4, None)


def test_joules_are_those_of_longer_orders_and_of_evaluations(tmp_path):
    """FedSA trains twice the epochs; without transfers every second of an order takes 3 W."""
    overrides = ["algorithm=fedsa", "devices/energy=phone", "client_eval_every=2", "num_versions=9"]
    _, summary = run_cell(Plan(make_config(*overrides)), tmp_path, label="metered", show=False)
    starts, seconds = {}, 0.0
    for event in read_events(tmp_path / "events.jsonl"):
        if event.kind in ("dispatch", "evaluate_order"):
            starts[event.order] = event.t
        elif event.kind in ("arrival", "client_evaluate"):
            seconds += event.t - starts[event.order]
    assert summary["joules"] == pytest.approx(3.0 * seconds, rel=1e-5)


MEASURES = ("target_accuracy=1", "metrics=[recall]", "client_eval_every=1")


@pytest.mark.parametrize(
    "more", [*MEASURES, "algorithm=area", "algorithm=fedsa", "runtime.train=no"]
)
def test_settings_that_need_training_are_refused(more):
    with pytest.raises(ValueError, match=r"^runtime\.train="):
        validate_config(make_config("runtime.train=false", "num_clients=10", more))


def test_a_gradient_of_the_server_has_shared_entries_only_and_never_pauses():
    config = make_config("algorithm/client=first_only", "algorithm.client.private=[3.*]")
    trainer = build_trainer(config, build_task(config))
    gradient = server_gradient(trainer)(trainer.model.read(), 1, 40, 8)
    assert gradient.shape == (trainer.model.layout.size,)


# -- lengths and sizes ----------------------------------------------------------------------------


def test_an_algorithm_may_refuse_the_length_of_a_run():
    settings = ["algorithm=fedhist", "algorithm.strategy.norm_decay=0.01"]
    for length in ("num_versions=99", "max_seconds=99", "max_updates=99"):  # each can end a run
        validate_config(make_config(*settings, length))
    validate_config(make_config(*settings, "num_versions=100", "algorithm.strategy.norm_floor=0.2"))
    with pytest.raises(ValueError, match=r"norm_decay=0.01 must be below 1 / num_versions=0.01"):
        validate_config(make_config(*settings))  # the default is 100


@pytest.mark.parametrize(("settings", "upload"), [([], 8), (["upload_dtype=float16"], 4)])
def test_the_bytes_of_vectors_beside_the_model_are_known_before_the_run(settings, upload):
    """They determine the seconds of transfers, which here are nearly all of an order."""
    link = ["devices/network=link", "devices.network.down=1", "devices.network.up=1"]
    more = [*link, *(f"algorithm.client.{entry}" for entry in settings)]

    def build(algorithm):
        config = make_config(f"algorithm={algorithm}", "num_clients=10", *more)
        components = build_components(config)
        sizes = message_bytes(components.strategy, components.trainer)
        d = components.trainer.model.layout.size
        assert components.upload_bytes == sizes[1]
        return sizes[0] // d, sizes[1] // d, components.devices.parts(3, 0, 0.0).seconds

    *sizes, seconds = build("scaffold")
    assert sizes == [8, upload]
    *plain, shorter = build("fedbuff")
    assert plain == [4, upload // 2]
    assert seconds == pytest.approx(2 * shorter, rel=0.01)


# -- checkpoints -----------------------------------------------------------------------------------


def test_the_last_two_are_kept_and_the_newest_is_loaded(tmp_path):
    store = Checkpoints(tmp_path)
    assert store.load() is None
    for version in (2, 9, 10):
        path = store.save(version, {"version": version, "params": np.arange(3.0) * version})
    assert path.name == "version-000000010.checkpoint"
    names = sorted(file.name for file in (tmp_path / "checkpoints").iterdir())
    assert names == ["version-000000009.checkpoint", "version-000000010.checkpoint"]
    assert store.load()["params"].tolist() == [0.0, 10.0, 20.0]


@pytest.mark.parametrize("length", [0, 4, 200, -1])
def test_a_torn_file_is_passed_over(tmp_path, length):
    store = Checkpoints(tmp_path)
    store.save(1, {"params": np.arange(100.0)})
    path = store.save(2, {"params": np.arange(100.0) + 1})
    path.write_bytes(path.read_bytes()[:length])
    assert store.load()["params"][0] == 0.0
    # It does not count as one of the two kept checkpoints, and is removed with them.
    store.save(3, {"params": np.arange(100.0) + 2})
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == [f"version-00000000{n}" for n in ("1.checkpoint", "2.torn", "3.checkpoint")]
    for file in path.parent.glob("*.checkpoint"):
        file.write_bytes(file.read_bytes()[:-3] + b"???")
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be read: .*torn"):
        store.load()


def test_where_it_cannot_be_written_the_one_before_stands(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path)

    def full(*_):
        raise OSError(28, "No space left")

    store.save(2, {"params": np.arange(3.0)})
    monkeypatch.setattr(checkpoint, "atomic_write", full)
    with pytest.raises(OSError, match="No space left"):
        store.save(3, {"params": np.zeros(3)})
    assert store.load()["params"].tolist() == [0, 1, 2]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


@pytest.mark.parametrize("name", ["version-000000007.safetensors", "version-000000007.checkpoint"])
def test_one_of_another_version_is_refused(tmp_path, name):
    content = b"fl_app checkpoint 1\n"
    path = tmp_path / "checkpoints" / name
    path.parent.mkdir()
    path.write_bytes(hashlib.sha256(content).digest() + content)
    with pytest.raises(ValueError, match=rf"{name} was written by another version of this project"):
        Checkpoints(tmp_path).load()


# -- Ctrl-C and SIGTERM ---------------------------------------------------------------------------

LONG = 30.0  # seconds; no test waits so long


def on_signal(): ...


interruptible = partial(signals.interruptible, patience=0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_call_that_blocks_is_ended_after_a_while(number):
    reading, writing = os.pipe()
    times = []
    start = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        with (
            pytest.raises(KeyboardInterrupt),
            interruptible(lambda: times.append(time.monotonic() - start)),
        ):
            selector.select(LONG)
    assert len(times) == 1
    assert times[0] + 0.05 < time.monotonic() - start < 5.0
    os.close(reading)
    os.close(writing)


def test_a_second_signal_does_not_wait():
    def twice():
        with interruptible(on_signal) as guard, guard():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(LONG)

    with pytest.raises(KeyboardInterrupt):
        twice()


@pytest.mark.parametrize("earlier_signal", [False, True])
def test_a_checkpoint_is_written_to_its_end(tmp_path, monkeypatch, earlier_signal):
    """Even if that takes longer than the patience."""
    dumps = checkpoint.dumps

    def slowly(state):
        if not earlier_signal:
            os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.3)
        return dumps(state)

    monkeypatch.setattr(checkpoint, "dumps", slowly)
    store = Checkpoints(tmp_path)
    with interruptible(on_signal) as guard:
        if earlier_signal:
            os.kill(os.getpid(), signal.SIGTERM)
        with guard():
            path = store.save(3, {"params": np.arange(3.0)})
    assert list(path.parent.iterdir()) == [path]
    assert store.load()["params"].tolist() == [0, 1, 2]
