"""Requests to a SuperLink or a SuperNode without Flower's client."""

from pathlib import Path

import httpx
import pytest
from fake_superlink import superlink

from fl_app.field.health import ask, healthy
from fl_app.field.kit import Kit


def device(port: object) -> Kit:
    settings = {"SUPERLINK": "server:8100", "PORT": str(port)}
    return Kit(Path("/nowhere"), "node", settings)


def test_an_error_names_path_and_status() -> None:
    with superlink(status=404) as port, pytest.raises(httpx.HTTPError, match=r"^/health: 404"):
        ask(f"127.0.0.1:{port}", "/health", None)


def test_a_process_is_healthy_if_it_answers_with_200() -> None:
    with superlink() as port:
        assert healthy(device(port))
    assert not healthy(device(port))
    with superlink(status=404) as port:
        assert not healthy(device(port))


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with superlink() as port:
        assert healthy(device(port))


def test_an_address_that_is_none_is_not_healthy() -> None:
    assert not healthy(device("no port"))
