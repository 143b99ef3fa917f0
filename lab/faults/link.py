"""A bad link in user space: a proxy that delays, throttles, cuts or repeats what passes through.

It forwards streams, above TCP, so it cannot lose packets: that needs netem in the kernel.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

HOST = "127.0.0.1"
CHUNK = 4096  # bytes
UNDER_WAY = 1024  # most chunks that a delayed line holds


@dataclass
class Way:
    """One direction of a link; its attributes may be changed at any time.

    Attributes:
        bytes_per_second: of all connections together.
        delay: added to every transfer, seconds.
        free: when the line is free again, on the monotonic clock.
    """

    bytes_per_second: float = math.inf
    delay: float = 0.0
    free: float = field(default=0.0, repr=False)

    async def take(self, num_bytes: int) -> float:
        """Wait until `num_bytes` have been sent; returns the time at which they arrive."""
        self.free = max(self.free, time.monotonic()) + num_bytes / self.bytes_per_second
        await asyncio.sleep(self.free - time.monotonic())
        return self.free + self.delay


class Link:
    """Forwards connections to a port of this machine, until it is closed or the process ends.

    Args:
        port: to which it forwards.
        bytes_per_second: of all connections together, in each direction.
        host: address on which it listens; "0.0.0.0" = all of this machine's.

    Attributes:
        port: on which it listens.
        up: direction from the client to the server.
        down: direction from the server to the client.
        repeated: number of requests that were sent a second time.
    """

    def __init__(self, port: int, bytes_per_second: float = math.inf, *, host: str = HOST) -> None:
        self._to, self._host = port, host
        self.up, self.down = Way(bytes_per_second), Way(bytes_per_second)
        self.repeated = 0
        self._twice, self._after = b"", b""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def cut(self) -> None:
        """Stop all traffic, as an unplugged cable does: connections stay open."""
        self._tell(self._whole.clear)

    def restore(self) -> None:
        """Resume the traffic, also what was held back."""
        self._tell(self._whole.set)

    def repeat(self, path: str, after: str = "") -> None:
        """Send every HTTP request to a path a second time, on a separate connection.

        It does not work with TLS.

        Args:
            path: prefix of the path, such as ``/v1/push``; "" ends the repetition.
            after: prefix of another path. Requests are repeated when a request to it passes; "" =
                at once.
        """
        self._twice = f"POST {path}".encode() if path else b""
        self._after = f"POST {after or path}".encode()

    def close(self) -> None:
        """Abort all connections and stop."""

        async def leave() -> None:
            self._server.close()
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(leave(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _tell(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(action)

    async def _listen(self) -> int:
        self._kept: list[bytes] = []  # requests to repeat
        self._whole = asyncio.Event()
        self._whole.set()
        self._server = await asyncio.start_server(self._connect, self._host, 0, limit=CHUNK)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # by `close`
            await self._pass_on(reader, writer)
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            there, back = await asyncio.open_connection(HOST, self._to, limit=CHUNK)
        except ConnectionRefusedError:  # the server is down
            return
        try:
            await asyncio.gather(
                self._forward(lambda: self.up, reader, back),
                self._forward(lambda: self.down, there, writer),
                return_exceptions=True,  # an aborted connection must not end the others
            )
        finally:
            back.close()

    async def _forward(
        self,
        way: Callable[[], Way],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDER_WAY)
        requests = Requests()

        async def enter() -> None:
            with suppress(ConnectionError):  # aborted: then the other side is closed, too
                while data := await reader.read(CHUNK):
                    await line.put((await way().take(len(data)), data))
            await line.put((time.monotonic() + way().delay, b""))

        async def leave() -> None:
            while True:
                due, data = await line.get()
                await asyncio.sleep(due - time.monotonic())
                await self._whole.wait()
                if not data:
                    return
                writer.write(data)
                await writer.drain()
                if way() is self.up and self._twice:
                    await self._note(requests.feed(data))

        entering = asyncio.ensure_future(enter())
        try:
            await leave()
        finally:
            entering.cancel()
            writer.close()

    async def _note(self, requests: list[bytes]) -> None:
        for request in requests:
            if request.startswith(self._twice):
                self._kept.append(request)
            if request.startswith(self._after):
                kept, self._kept = self._kept, []
                for one in kept:
                    await self._send(one)

    async def _send(self, request: bytes) -> None:
        there, back = await asyncio.open_connection(HOST, self._to)
        self.repeated += 1
        try:
            back.write(request)
            await there.read(CHUNK)  # the answer
        finally:
            back.close()


class Requests:
    """Finds complete HTTP/1.1 requests in a stream; bodies must have a ``Content-Length``."""

    def __init__(self) -> None:
        self._seen = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The requests that are complete once `data` is added."""
        self._seen += data
        found = []
        while b"\r\n\r\n" in self._seen:
            head, _, rest = self._seen.partition(b"\r\n\r\n")
            length = 0
            for line in head.split(b"\r\n"):
                key, _, value = line.partition(b":")
                if key.lower() == b"content-length":
                    length = int(value)
            if len(rest) < length:
                break
            end = len(head) + 4 + length
            found.append(self._seen[:end])
            self._seen = self._seen[end:]
        return found
