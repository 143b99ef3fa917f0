"""The connection to Ray, with a fake of its API: what is asked of it, and in which thread."""

import signal
import socket
import sys
import threading
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import pytest

from fl_app.cluster import connection
from fl_app.cluster.connection import RayCluster
from fl_app.cluster.machines import Lost
from fl_app.core.errors import RunError


class FakeRay(ModuleType):
    """As much of the module `ray` as the connection uses."""

    def __init__(self) -> None:
        super().__init__("ray")
        names = ("RayTaskError", "NodeDiedError", "ObjectLostError", "LocalRayletDiedError")
        self.exceptions: Any = ModuleType("ray.exceptions")
        self.exceptions.RayError = error = type("RayError", (Exception,), {})
        for name in (*names, "ActorDiedError", "ObjectStoreFullError", "OutOfDiskError"):
            setattr(self.exceptions, name, type(name, (error,), {}))
        self.listed = [node("a", 4), node("b", 8, GPU=1.0), node("gone", 4, alive=False)]
        self.asked = threading.Event()
        self.calls: list[tuple[str, Any]] = []

    def init(self, **settings: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Ray sets a handler of its own
        self.calls.append(("init", settings))

    def is_initialized(self) -> bool:
        return False

    def nodes(self) -> list[dict[str, Any]]:
        if threading.current_thread() is not threading.main_thread():
            self.asked.set()
        return self.listed

    def remote(self, cls: Any) -> Any:
        return cls

    def kill(self, worker: Any, no_restart: bool) -> None:
        self.calls.append(("kill", worker))
        if worker == "dead":
            raise ValueError("it is dead")

    def shutdown(self) -> None:
        self.calls.append(("shutdown", None))


def node(name: str, cpus: float, alive: bool = True, **more: float) -> dict[str, Any]:
    offers = {"CPU": cpus, "object_store_memory": 1e8, **more}
    place = {"NodeManagerHostname": name, "NodeManagerAddress": "10.0.0.1"}
    return {"NodeID": f"id of {name}", "Alive": alive, "Resources": offers, **place}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.exceptions", fake.exceptions)
    monkeypatch.setattr(connection, "REFRESH", 0.01)
    monkeypatch.setattr(connection, "require_installed", lambda name: None)
    for name in ("USAGE_STATS_ENABLED", "ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "worker_niceness"):
        monkeypatch.setenv(f"RAY_{name}", "0")
    return fake


def test_machines_have_room_for_as_many_workers_as_their_resources_allow(ray: FakeRay) -> None:
    cluster = RayCluster(None, cpus=1.5)
    found = cluster.machines()
    cluster.close()
    assert {machine.name: machine.room for machine in found.values()} == {
        "a (10.0.0.1)": 2,
        "b (10.0.0.1)": 5,
    }
    cluster = RayCluster(None, cpus=1, gpus=0.25)
    assert [machine.room for machine in cluster.machines().values()] == [0, 4]
    cluster.close()


def test_machines_are_asked_for_and_workers_ended_in_another_thread(ray: FakeRay) -> None:
    cluster = RayCluster(None)
    ray.listed = [node("c", 1)]
    assert ray.asked.wait(5)
    ray.asked.clear()
    assert ray.asked.wait(5)  # and what the first question found has been noted
    assert list(cluster.machines()) == ["id of c"]
    cluster.kill("dead")
    cluster.kill("hung")
    cluster.close()
    assert ray.calls[1:] == [("kill", "dead"), ("kill", "hung"), ("shutdown", None)]


def test_a_cluster_of_this_machine_is_started_with_room_for_the_workers(ray: FakeRay) -> None:
    before = signal.getsignal(signal.SIGTERM)
    RayCluster(None, num_workers=100, cpus=0.5, store_bytes=10**9).close()
    assert signal.getsignal(signal.SIGTERM) is before
    _, settings = ray.calls[0]
    assert settings["address"] == "local"  # also where RAY_ADDRESS names another one
    assert settings["num_cpus"] >= 50
    assert settings["object_store_memory"] == 10**9
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_an_address_without_a_cluster_is_refused_before_ray_tries(ray: FakeRay) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunError, match=rf"no Ray cluster answers at {address} .*--head"):
            RayCluster(address)
    assert ray.calls == []


@pytest.mark.parametrize(
    ("name", "text", "told", "alone"),
    [
        ("ActorDiedError", "died because its node has died. Id: 1", "its node has died.*", False),
        ("ActorDiedError", "dead because\n\tit exited. Some common causes", "it exited.", True),
        ("ActorDiedError", "the node running low on memory", ".*short of memory.*", True),
        ("NodeDiedError", "gone", "gone", False),
    ],
)
def test_losses_are_told_apart(ray: FakeRay, name: str, text: str, told: str, alone: bool) -> None:
    done: Future[Any] = Future()
    done.set_exception(getattr(ray.exceptions, name)(text))
    outcome = connection._outcome(done)
    assert isinstance(outcome, Lost)
    assert outcome.alone == alone
    with pytest.raises(Lost, match=f"^{told}$"):
        raise outcome


def test_what_a_worker_raises_is_no_loss(ray: FakeRay) -> None:
    done: Future[Any] = Future()
    done.set_exception(ray.exceptions.RayTaskError("KeyError: 'x'"))
    outcome = connection._outcome(done)
    assert isinstance(outcome, RuntimeError)
    assert str(outcome) == "KeyError: 'x'"
    done = Future()
    done.set_result(3)
    assert connection._outcome(done) == 3
