"""A bad link in user space: a proxy that delays, throttles or cuts the traffic.

It forwards TCP streams, so it cannot lose packets: that needs netem in the kernel.
"""

import asyncio
import math
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field

HOST = "127.0.0.1"
CHUNK = 4096  # bytes
UNDER_WAY = 1024  # maximum number of chunks that a delayed line holds


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports of this machine."""
    with ExitStack() as stack:  # all are bound at the same time, so they differ
        probes = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


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
        host: address on which it listens; "0.0.0.0" = all of this machine's.

    Attributes:
        port: on which it listens.
        up: direction from the client to the server.
        down: direction from the server to the client.
    """

    def __init__(self, port: int, *, host: str = HOST) -> None:
        self._to = port
        self.up, self.down = Way(), Way()
        listens = threading.Event()
        serving = self._serve(host, listens)
        self._thread = threading.Thread(target=asyncio.run, args=(serving,), daemon=True)
        self._thread.start()
        listens.wait()

    def cut(self) -> None:
        """Stop all traffic, as an unplugged cable does: connections stay open."""
        self._loop.call_soon_threadsafe(self._whole.clear)

    def restore(self) -> None:
        """Resume the traffic, including what was held back."""
        self._loop.call_soon_threadsafe(self._whole.set)

    def close(self) -> None:
        """Abort all connections and stop."""
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()

    async def _serve(self, host: str, listens: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._whole, self._closed = asyncio.Event(), asyncio.Event()
        self._whole.set()
        server = await asyncio.start_server(self._connect, host, 0, limit=CHUNK)
        self.port: int = server.sockets[0].getsockname()[1]
        listens.set()
        await self._closed.wait()
        server.close()  # connections are cancelled with the loop

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # `close` cancels it, or the server is down.
        with closing(writer), suppress(asyncio.CancelledError, ConnectionRefusedError):
            await self._whole.wait()
            source, sink = await asyncio.open_connection(HOST, self._to, limit=CHUNK)
            await asyncio.gather(
                self._forward(self.up, reader, sink),
                self._forward(self.down, source, writer),
                return_exceptions=True,  # an aborted connection must not end the others
            )

    async def _forward(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDER_WAY)

        async def enter() -> None:
            with suppress(ConnectionError):  # aborted: then the other side is closed, too
                while data := await reader.read(CHUNK):
                    await line.put((await way.take(len(data)), data))
            await line.put((time.monotonic() + way.delay, b""))

        entering = asyncio.ensure_future(enter())
        try:
            while True:
                due, data = await line.get()
                await asyncio.sleep(due - time.monotonic())
                await self._whole.wait()
                if not data:
                    return
                writer.write(data)
                await writer.drain()
        finally:
            entering.cancel()
            writer.close()
