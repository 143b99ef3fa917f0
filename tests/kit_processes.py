"""Run commands of this project and of its kits as separate processes."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from flwr.proto.control_pb2 import (
    ListNodesResponse,
    ListRunsResponse,
    StartRunRequest,
    StartRunResponse,
)
from flwr.proto.node_pb2 import NodeInfo

from fl_app.field.kit import Kit
from fl_app.field.make import LINK_PORT


def free_ports(count):
    """`count` different free ports of this machine."""
    with ExitStack() as stack:  # all are bound at the same time, so they differ
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def launch(*arguments, module="fl_app", options=()):
    """``python OPTIONS -m MODULE ARGUMENTS`` in a process group that is killed at the end."""
    with subprocess.Popen(
        [sys.executable, *options, "-m", module, *arguments],
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
    """Give a kit's processes free ports; without Caddy, nodes connect to the SuperLink itself."""
    nodes = sorted(out.glob("node-*"))
    link, *ports = free_ports(1 + len(nodes))
    changes = {out / "server" / "server.env": {f":{LINK_PORT}": f":{link}"}}
    for folder, port in zip(nodes, ports, strict=True):
        settings = Kit.read(folder, {}).settings
        changes[folder / "node.env"] = {f'"{settings["PORT"]}"': f'"{port}"'}
        if shutil.which("caddy") is None:
            superlink_port = settings["SUPERLINK"].rpartition(":")[2]
            changes[folder / "node.env"][f":{superlink_port}"] = f":{link}"
    for path, replacements in changes.items():
        text = path.read_text()
        for old, new in replacements.items():
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
    """Terminate a process and its group; kill it if it does not end."""
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


def wait_for(condition, description, seconds=120.0):
    """Wait for a condition; return the seconds that it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds:g} s: {description}"
        time.sleep(0.2)
    return time.monotonic() - start


def processes(folder, name=""):
    """Ids and command lines of processes whose home of Flower is `folder`."""
    command_lines = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            line = (process / "cmdline").read_text().replace("\0", " ")
            if f"FLWR_HOME={folder}".encode() in (process / "environ").read_bytes():
                command_lines[int(process.name)] = line
    return {pid: line for pid, line in command_lines.items() if name in line}


def count(run, kind):
    events = run / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True) if events.exists() else []
    return sum(json.loads(line)["kind"] == kind for line in lines if line.endswith("\n"))


# -- a fake SuperLink ------------------------------------------------------------------------------


@contextmanager
def superlink(
    certificates=None,
    *,
    registered=(),
    runs=(),
    new_run=None,
    start_requests=None,
    lag=0.0,
    status=200,
    proxied=False,
):
    """Serve a fake SuperLink; yields its port on loopback.

    Args:
        certificates: folder with ``server.crt`` and ``server.key``; None speaks without TLS.
        registered: public keys of nodes.
        runs: submitted runs.
        new_run: id of the run that a request starts; None = no run starts.
        start_requests: a list that receives the requests for runs.
        lag: seconds by which its clock is behind.
        status: HTTP status of all answers.
        proxied: refuse all calls but those of SuperNodes.
    """

    start_requests = [] if start_requests is None else start_requests

    class Handler(BaseHTTPRequestHandler):
        def date_time_string(self, timestamp=None):
            return formatdate((timestamp or time.time()) - lag, usegmt=True)

        def do_GET(self):
            self.answer(b"{}")

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "Transfer-Encoding" in self.headers:
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size + 2)[:-2]
            if self.path.endswith("/list-runs"):
                answer = ListRunsResponse(run_dict={run.run_id: run for run in runs})
                self.answer(answer.SerializeToString())
                return
            if self.path.endswith("/start-run"):
                start_requests.append(StartRunRequest.FromString(body))
                self.answer(StartRunResponse(run_id=new_run).SerializeToString())
                return
            nodes = [NodeInfo(public_key=key, status="offline") for key in registered]
            for node in nodes[:1]:
                node.status = "online"
            self.answer(ListNodesResponse(nodes_info=nodes).SerializeToString())

        def answer(self, body, code=status):
            self.send_response(403 if proxied and "/v1/fleet/" not in self.path else code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_): ...

    class Server(HTTPServer):
        def handle_error(self, *_): ...  # a client that does not trust the certificate

    with Server(("127.0.0.1", 0), Handler) as server:
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
