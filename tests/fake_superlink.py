"""A SuperLink that only answers what health checks and the doctor ask."""

import ssl
import threading
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from time import time

from flwr.proto.control_pb2 import (
    ListNodesResponse,
    ListRunsResponse,
    StartRunRequest,
    StartRunResponse,
)
from flwr.proto.node_pb2 import NodeInfo


@contextmanager
def superlink(
    certificates=None,
    *,
    registered=(),
    runs=(),
    begins=None,
    begun=None,
    late=0.0,
    status=200,
    proxied=False,
):
    """Its port on loopback.

    Args:
        certificates: folder with ``server.crt`` and ``server.key``; None speaks without TLS.
        registered: public keys of nodes.
        runs: that were submitted.
        begins: number of a run that is submitted; None = none begins.
        begun: a list that receives the requests for runs.
        late: seconds by which its clock is behind.
        status: of all answers.
        proxied: lets through what SuperNodes call, and no more.
    """

    begun = [] if begun is None else begun

    class Handler(BaseHTTPRequestHandler):
        def date_time_string(self, timestamp=None):
            return formatdate((timestamp or time()) - late, usegmt=True)

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
                begun.append(StartRunRequest.FromString(body))
                self.answer(StartRunResponse(run_id=begins).SerializeToString())
                return
            nodes = [NodeInfo(public_key=key, status="offline") for key in registered]
            self.answer(ListNodesResponse(nodes_info=nodes).SerializeToString())

        def answer(self, body, code=status):
            self.send_response(403 if proxied and "/v1/fleet/" not in self.path else code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_): ...

    class Server(HTTPServer):
        def handle_error(self, *_): ...  # a client that does not trust us

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
