"""A bad link between a client and an echo on loopback."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

import pytest

from faults.link import Link, Requests

ALL = 20_000  # bytes


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says back what it is told, to any number of connections."""

    def answer(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=answer, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.fixture
def link(echo: int) -> Iterator[Link]:
    with closing(Link(echo)) as link:
        yield link


def connect(link: Link) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=5.0)


def echoed(connection: socket.socket, data: bytes) -> float:
    """Seconds until all of it is back."""
    began = time.monotonic()
    connection.sendall(data)
    back = b""
    while len(back) < len(data):
        back += connection.recv(65536)
    assert back == data
    return time.monotonic() - began


def test_everything_passes_unchanged(link: Link) -> None:
    with connect(link) as one, connect(link) as another:
        echoed(one, bytes(range(256)) * 1000)
        echoed(another, b"x")


def test_delay_is_added_to_each_way_and_not_to_every_piece(link: Link) -> None:
    link.up.delay, link.down.delay = 0.15, 0.05
    with connect(link) as connection:
        assert 0.2 <= echoed(connection, bytes(ALL)) < 0.35
    link.up.delay = link.down.delay = 0.0
    with connect(link) as connection:
        assert echoed(connection, b"x") < 0.15


def test_the_rate_is_that_of_all_connections_together(link: Link) -> None:
    link.up.bytes_per_second = 4 * ALL
    with connect(link) as one, connect(link) as another:
        one.sendall(bytes(ALL))
        assert 0.45 <= echoed(another, bytes(ALL)) < 0.8
    with connect(link) as connection:
        assert echoed(connection, bytes(ALL // 10)) < 0.2, "only that way was slow"


def test_a_rate_from_the_beginning_holds_both_ways(echo: int) -> None:
    with closing(Link(echo, 4 * ALL)) as link, connect(link) as connection:
        assert echoed(connection, bytes(ALL)) >= 0.25
        assert link.down.bytes_per_second == 4 * ALL


def test_a_cut_link_is_silent_and_what_waited_passes_when_it_is_whole(link: Link) -> None:
    with connect(link) as known:
        echoed(known, b"x")
        link.cut()
        known.sendall(b"y")
        with connect(link) as new:
            new.sendall(b"z")
            for connection in (known, new):
                connection.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
                connection.settimeout(5.0)
            link.restore()
            assert (known.recv(1), new.recv(1)) == (b"y", b"z")


def test_a_side_that_leaves_is_missed_by_the_other(link: Link) -> None:
    with connect(link) as connection:
        echoed(connection, b"x")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_a_connection_that_is_broken_off_ends_on_the_other_side() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        closing(Link(listener.getsockname()[1])) as link,
    ):
        connection = connect(link)
        there, _ = listener.accept()
        there.settimeout(5.0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        with there:
            assert there.recv(1) == b""


def test_where_nobody_listens_connections_end(link: Link) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with closing(Link(port)) as dead, connect(dead) as connection:
        assert connection.recv(1) == b""


def test_close_ends_connections_and_threads(echo: int) -> None:
    before = threading.active_count()
    link = Link(echo)
    with connect(link) as connection:
        connection.sendall(b"x")
        connection.recv(1)
        link.close()
        assert connection.recv(1) == b""
    assert threading.active_count() <= before + 1, "beside ours, one of the echo"


@pytest.fixture
def heard() -> Iterator[tuple[int, "SimpleQueue[str]"]]:
    """The port of an HTTP server, and what it was asked."""
    asked: SimpleQueue[str] = SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.put(f"{self.path} {body.decode()}")
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server.server_port, asked
        server.shutdown()
    thread.join()


def post(path: str, body: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nContent-length: {len(body)}\r\n\r\n{body}".encode()


def test_requests_are_repeated_where_asked(heard: "tuple[int, SimpleQueue[str]]") -> None:
    port, asked = heard
    with closing(Link(port)) as link:
        link.repeat("/push")
        for path, body in [("/pull", "a"), ("/push", "b")]:
            with connect(link) as connection:
                connection.sendall(post(path, body))
                assert b"200 OK" in connection.recv(4096)
        told = [asked.get(timeout=5.0) for _ in range(3)]
    assert told == ["/pull a", "/push b", "/push b"]
    assert link.repeated == 1


def test_requests_are_said_again_when_another_passes(
    heard: "tuple[int, SimpleQueue[str]]",
) -> None:
    port, asked = heard
    with closing(Link(port)) as link:
        link.repeat("/push", after="/pull")
        for path, body in [("/push", "a"), ("/push", "b"), ("/pull", "c")]:
            with connect(link) as connection:
                connection.sendall(post(path, body))
                assert b"200 OK" in connection.recv(4096)
        told = [asked.get(timeout=5.0) for _ in range(5)]
    assert told[:2] == ["/push a", "/push b"]
    assert sorted(told[2:]) == ["/pull c", "/push a", "/push b"]  # on several connections
    assert link.repeated == 2


def test_requests_are_found_however_they_are_cut() -> None:
    stream = post("/a", "one") + post("/b", "") + post("/c", "a\r\n\r\nb")
    for size in (1, 7, len(stream)):
        requests = Requests()
        found = []
        for start in range(0, len(stream), size):
            found += requests.feed(stream[start : start + size])
        assert found == [post("/a", "one"), post("/b", ""), post("/c", "a\r\n\r\nb")]
