"""A SuperLink that only answers what health checks and the doctor ask."""

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from time import time
from types import MappingProxyType

from flwr.proto.control_pb2 import ListNodesResponse, ListRunsResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run

from fl_app.field.gate import NODE, REFUSED


@contextmanager
def superlink(
    certificates: Path | None = None,
    *,
    registered: tuple[bytes, ...] = (),
    runs: tuple[Run, ...] = (),
    version: str = "1.41.0",
    late: float = 0.0,
    status: int = 200,
    proxied: bool = False,
    gate: str | None = None,
    facts: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[int]:
    """Its port on loopback.

    Args:
        certificates: folder with ``server.crt`` and ``server.key``; None speaks without TLS.
        registered: public keys of nodes.
        runs: that were submitted.
        version: of Flower.
        late: seconds by which its clock is behind.
        status: of all answers.
        proxied: lets through what SuperNodes need, and no more.
        gate: the status that a gate tells a device that asks; None = it has no gate.
        facts: what a gate tells besides.
    """

    class Handler(BaseHTTPRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate((timestamp or time()) - late, usegmt=True)

        def do_GET(self) -> None:
            if gate is not None:
                self.at_the_gate()
                return
            self.answer(json.dumps({"info": {"version": version}}).encode())

        def at_the_gate(self) -> None:
            told = (
                {"status": gate, "flower": version, "project": version, **facts}
                if gate
                else {"detail": "fl-app: unknown"}
            )
            if self.path != NODE or "flwr-signature" not in self.headers:
                self.answer(json.dumps({"detail": REFUSED}).encode(), 403)
            else:
                told = told if gate else {"detail": "fl-app: unknown"}
                self.answer(json.dumps(told).encode(), 200 if gate else 404)

        def do_POST(self) -> None:
            if gate is not None:
                self.at_the_gate()
                return
            if self.path.endswith("/list-runs"):
                answer = ListRunsResponse(run_dict={run.run_id: run for run in runs})
                self.answer(answer.SerializeToString())
                return
            nodes = [NodeInfo(public_key=key, status="offline") for key in registered]
            self.answer(ListNodesResponse(nodes_info=nodes).SerializeToString())

        def answer(self, body: bytes, code: int = status) -> None:
            self.send_response(403 if proxied and self.path != "/health" else code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    class Server(HTTPServer):
        def handle_error(self, *_: object) -> None: ...  # a client that does not trust us

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
