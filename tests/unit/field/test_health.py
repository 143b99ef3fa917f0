"""Requests to a SuperLink or a SuperNode without Flower's client."""

from pathlib import Path

import pytest
from fake_superlink import superlink

from fl_app.field.health import healthy
from fl_app.field.kit import Kit, new_kit


def device(port: object) -> Kit:
    settings = {"SUPERLINK": "server:8100", "PORT": str(port)}
    return Kit(Path("/nowhere"), "node", settings)


def test_a_process_is_healthy_if_it_answers_with_200(tmp_path: Path) -> None:
    new_kit(tmp_path / "out", nodes=1, hosts=["127.0.0.1"])
    with superlink(tmp_path / "out" / "server") as port:
        assert healthy(Kit.read(tmp_path / "out" / "server", {"SUPERLINK": f"127.0.0.1:{port}"}))
        assert not healthy(device(port))  # speaks TLS, which nodes do not here
    with superlink() as port:
        assert healthy(device(port))
    assert not healthy(device(port))
    with superlink(status=404) as port:
        assert not healthy(device(port))
    assert not healthy(device("no port"))


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with superlink() as port:
        assert healthy(device(port))
