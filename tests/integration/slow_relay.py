"""A TCP relay to a broker that delays the answers to one API."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Iterator

from kbroker.protocol.api_keys import ApiKey

_HEAD = struct.Struct(">ih")  # length and API key


class SlowRelay:
    """Passes bytes between clients of `port` on 127.0.0.1 and a broker; answers to `slow_key` after `delay_s`."""

    def __init__(self, slow_key: ApiKey, delay_s: float) -> None:
        self.broker_port = 0  # set before the first client comes
        self.port = 0
        self._slow_key = slow_key
        self._delay_s = delay_s

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _relay(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        broker, to_broker = await asyncio.open_connection("127.0.0.1", self.broker_port)
        last_key = ApiKey.API_VERSIONS

        async def requests() -> None:
            nonlocal last_key
            while True:
                head = await client.readexactly(_HEAD.size)
                length, key = _HEAD.unpack(head)
                last_key = ApiKey(key)
                to_broker.write(head + await client.readexactly(length - 2))

        async def answers() -> None:
            loop, due_s = asyncio.get_running_loop(), 0.0
            while piece := await broker.read(65536):
                delay_s = self._delay_s if last_key is self._slow_key else 0
                due_s = max(loop.time() + delay_s, due_s + 1e-6)  # in order
                loop.call_at(due_s, to_client.write, piece)

        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await asyncio.gather(requests(), answers())
        to_broker.close()
        to_client.close()


@contextlib.contextmanager
def slow_relay(slow_key: ApiKey, delay_s: float) -> Iterator[SlowRelay]:
    """A relay that listens, on a thread of its own."""
    relay, loop = SlowRelay(slow_key, delay_s), asyncio.new_event_loop()
    server = loop.run_until_complete(relay.listen())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield relay
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
