"""A slow link in user space: a proxy that lets so many bytes a second pass, either way."""

import asyncio
import threading
import time

CHUNK = 4096  # bytes


class Link:
    """Forwards connections to a port of this machine, until the process ends.

    Args:
        port: where to.
        bytes_per_second: of all connections together, in each direction.

    Attributes:
        port: where it listens.
    """

    def __init__(self, port: int, bytes_per_second: float) -> None:
        self._to = port
        self._rate = bytes_per_second
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        serving = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        self.port: int = serving.result()

    async def _listen(self) -> int:
        # When the line is free again, up and down.
        self._free = {"up": 0.0, "down": 0.0}
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0, limit=CHUNK)
        self._server = server  # a reference, or it would be collected
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to, limit=CHUNK)
        except ConnectionRefusedError:  # the SuperLink has ended
            writer.close()
            return
        await asyncio.gather(
            self._forward("up", reader, back),
            self._forward("down", there, writer),
            return_exceptions=True,  # a side that breaks off ends its connection, no more
        )

    async def _forward(
        self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await reader.read(CHUNK):
                free = max(self._free[way], time.monotonic()) + len(data) / self._rate
                self._free[way] = free
                await asyncio.sleep(free - time.monotonic())
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
