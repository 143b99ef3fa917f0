"""Commands of this project and of its kits as processes of their own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fl_app.field.kit import Kit
from fl_app.field.make import LINK_PORT


def free_ports(count):
    """So many different free ports of this machine."""
    with ExitStack() as stack:  # all are bound at the same time, so they differ
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def started(*words, module="fl_app", options=()):
    """``python OPTIONS -m MODULE WORDS`` in a process group that is killed in the end."""
    with subprocess.Popen(
        [sys.executable, *options, "-m", module, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def field(*arguments):
    return [sys.executable, "-m", "fl_app.field", *map(str, arguments)]


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}


def give_ports(out):
    """Ports of their own for a kit's processes; without Caddy, nodes reach the SuperLink."""
    nodes = sorted(out.glob("node-*"))
    link, *ports = free_ports(1 + len(nodes))
    changes = {out / "server" / "server.env": {f":{LINK_PORT}": f":{link}"}}
    for folder, port in zip(nodes, ports, strict=True):
        settings = Kit.read(folder, {}).settings
        changes[folder / "node.env"] = {f'"{settings["PORT"]}"': f'"{port}"'}
        if shutil.which("caddy") is None:
            reached = settings["SUPERLINK"].rpartition(":")[2]
            changes[folder / "node.env"][f":{reached}"] = f":{link}"
    for path, words in changes.items():
        text = path.read_text()
        for old, new in words.items():
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)


def ask(*arguments):
    return subprocess.run(field(*arguments), env=ENVIRONMENT, text=True, capture_output=True)


LOOP = """
[ ! -e Caddyfile ] || ! command -v caddy || sh start.sh caddy &
trap exit TERM
while :; do sh start.sh; sleep 10; done
"""


def keep(folder):
    """Keep a folder's processes running, as docs/edge.md does without a service manager."""
    with folder.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            ["sh", "-c", LOOP],
            cwd=folder,
            env={**ENVIRONMENT, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def end(process):
    """End a process and its group; what does not hear is killed."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)


def start(log, *arguments):
    with log.open("wb") as file:
        return subprocess.Popen(
            field(*arguments),
            env=ENVIRONMENT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for(true, what, seconds=120.0):
    """Seconds that it took to become true."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(0.2)
    return time.monotonic() - began


def processes(folder, name=""):
    """Of those whose home for Flower lies in `folder`: process ids and command lines."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile, or somebody else's
            line = (process / "cmdline").read_text().replace("\0", " ")
            if f"FLWR_HOME={folder}".encode() in (process / "environ").read_bytes():
                found[int(process.name)] = line
    return {pid: line for pid, line in found.items() if name in line}


def logged(run, kind):
    events = run / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True) if events.exists() else []
    return sum(json.loads(line)["kind"] == kind for line in lines if line.endswith("\n"))
