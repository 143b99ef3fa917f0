"""Who comes to the port: strangers, a second device with one key, a device of other versions."""

import shutil
import socket
import ssl
import subprocess
import time
from contextlib import suppress

import httpx

from faults.field import Disappointed, Run
from faults.injections import Injection, Seen
from fl_app.field.doctor import LIST_RUNS, own_address
from fl_app.field.gate import PUSH_PART
from fl_app.field.kit import Kit
from fl_app.field.loopback import free_ports
from fl_app.field.supernode import MISSED

GIGABYTE = 10**9
MIB = 2**20
HELD = 64.0  # MiB by which the SuperLink may grow while it refuses
NOT_ALLOWED = "fl-app>=99"
SECOND = "another device is online with this device's key"


def stranger() -> Injection:
    """Somebody without a key reaches the port, from another address than loopback."""

    def inject(run: Run) -> Seen:
        address = own_address("127.0.0.1", "0.0.0.0")
        if address is None:
            raise Disappointed("this machine has no address but loopback")
        url = f"https://{address}:{run.field.port}"
        with httpx.Client(verify=False, timeout=30.0) as client:
            calls = {LIST_RUNS: client.post(url + LIST_RUNS).status_code}
            calls |= {path: client.get(url + path).status_code for path in ("/health", "/docs")}
        told = ", ".join(f"{path} {status}" for path, status in calls.items())
        if {*calls.values()} != {403}:
            raise Disappointed(f"a stranger's calls were answered with {told}")
        yield "stranger", f"calls refused: {told}"
        (server,) = run.field.processes("server", "fl_app.field.superlink")
        before = server.memory_info().rss
        status = _send(address, run.field.port)
        grown = (server.memory_info().rss - before) / MIB
        if status != 413 or grown > HELD:
            raise Disappointed(f"a gigabyte was answered with {status} after {grown:.0f} MiB")
        yield "large-body", f"a gigabyte: {status}, and the SuperLink grew by {grown:.0f} MiB"

    return Injection(["stranger", "large-body"], inject, [])


def second_device(node: int) -> Injection:
    """A second device has a copy of a node's folder, and so its key."""

    def inject(run: Run) -> Seen:
        copy = run.field.folder / f"copy-of-node-{node}"
        ignored = shutil.ignore_patterns("flower", "cache", "state")
        shutil.copytree(run.field.kit(f"node-{node}"), copy, ignore=ignored)
        (port,) = free_ports(1)
        settings = {**Kit.read(copy).environment, **run.field.settings(node)}
        began = time.monotonic()
        done = subprocess.run(
            ["sh", str(copy / "start.sh")],
            env={**settings, "PORT": str(port), "UPDATE_EVERY": "0"},
            capture_output=True,
            text=True,
            timeout=3 * MISSED,
        )
        after, said = time.monotonic() - began, done.stdout + done.stderr
        if SECOND not in said or done.returncode == 0:
            raise Disappointed(f"a second device with the key was not told so: {said[-500:]}")
        yield "same-key", f"after {after:.0f} s: {SECOND}; its SuperNode ends"

    return Injection(["same-key"], inject, [])


def other_version(node: int) -> Injection:
    """The server's app allows other versions than the nodes have (`NOT_ALLOWED`)."""

    def inject(run: Run) -> Seen:
        said = run.field.log(f"node-{node}")
        told = [line for line in said.splitlines() if "server's app does not allow" in line]
        if not told or said.index(told[0]) > said.find("Received") > -1:
            raise Disappointed("the node was not told before its first order")
        yield "other-version", told[0].partition(": ")[2].partition(";")[0]

    return Injection(["other-version"], inject, [])


def _send(address: str, port: int) -> int:
    """Send a gigabyte, as far as it is taken; returns the status of the answer."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    head = f"POST {PUSH_PART} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {GIGABYTE}\r\n\r\n"
    with (
        socket.create_connection((address, port), timeout=30.0) as plain,
        context.wrap_socket(plain) as line,
    ):
        line.sendall(head.encode())
        answer = line.recv(4096).split()
        with suppress(OSError):
            for _ in range(GIGABYTE // MIB):
                line.sendall(b"\0" * MIB)
    return int(answer[1]) if len(answer) > 1 else 0
