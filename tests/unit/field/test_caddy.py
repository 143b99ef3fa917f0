"""What stands before a SuperLink: Caddy as a kit starts it, and what a stranger gets."""

import os
import shutil
import socket
import ssl
import subprocess
from contextlib import closing, contextmanager, suppress
from http.client import HTTPSConnection

import pytest
from fake_superlink import superlink
from kit_processes import free_ports, wait_for

from fl_app.field.make import new_kit

needs_caddy = pytest.mark.skipif(
    shutil.which("caddy") is None, reason="there is no caddy to start (apt-get install caddy)"
)
PUSH, LIST_RUNS = "/v1/fleet/push-object", "/v1/control/list-runs"
MB = 10**6


@pytest.fixture
def server(tmp_path):
    new_kit(tmp_path / "out", nodes=1, hosts=["server.lan"])
    return tmp_path / "out" / "server"


@contextmanager
def caddy(server, link_port):
    """Caddy before a port of this machine; a connection of a stranger to it."""
    (port,) = free_ports(1)
    settings = {"PORT": str(port), "SUPERLINK": f"127.0.0.1:{link_port}"}
    log = server / "caddy.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["sh", server / "start.sh", "caddy"],
            env={**os.environ, **settings},
            stdout=file,
            stderr=file,
        )

    def listens():
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens, "Caddy listens", 20.0)
        context = ssl.create_default_context(cafile=server / "ca.crt")
        stranger = HTTPSConnection("127.0.0.1", port, timeout=10.0, context=context)
        with closing(stranger):
            yield stranger
    finally:
        process.terminate()
        process.wait(20)


def status(stranger, method, path, body=None):
    stranger.request(method, path, body)
    found = stranger.getresponse()
    found.read()
    stranger.close()
    return found.status


@needs_caddy
def test_a_stranger_reaches_the_calls_of_supernodes_alone_and_not_with_large_bodies(server):
    with superlink(server) as port, caddy(server, port) as stranger:
        assert status(stranger, "POST", PUSH) == 200
        for method, path in (
            ("POST", LIST_RUNS),
            ("GET", "/"),
            ("GET", "/health"),
            ("GET", "/openapi.json"),
            ("POST", "/v1/runtime/pull-task"),
            ("POST", f"/v1/fleet/..{LIST_RUNS.removeprefix('/v1')}"),
            ("POST", f"/v1/fleet/%2e%2e{LIST_RUNS.removeprefix('/v1')}"),
            ("POST", f"/{LIST_RUNS}"),
            ("POST", "/v1/fleetcontrol"),
        ):
            assert status(stranger, method, path) == 403, path
        assert status(stranger, "POST", PUSH, bytes(5 * 2**20 + 4096)) == 200
        stranger.putrequest("POST", PUSH)  # is refused before it is read
        stranger.putheader("Content-Length", str(10 * MB))
        stranger.endheaders()
        assert stranger.getresponse().status == 413
        stranger.close()
        with suppress(ConnectionError, ssl.SSLError):  # it does not listen to the end
            assert status(stranger, "POST", PUSH, (bytes(MB) for _ in range(20))) == 413
    with caddy(server, free_ports(1)[0]) as stranger:  # while the SuperLink is down
        assert status(stranger, "POST", PUSH) == 502
        assert status(stranger, "POST", LIST_RUNS) == 403
