"""A small answer is sent immediately."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from mellea_like.gateway.config.gateway_config import ServerConfig
from mellea_like.gateway.http.server import listen


class Greeter(asyncio.Protocol):
    """Sends whether Nagle's algorithm is off for a connection that asyncio has set up."""

    def connection_made(self, transport):
        raw = transport.get_extra_info("socket")
        transport.write(str(raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)).encode())
        transport.close()


def test_answers_do_not_wait_for_nagle_s_algorithm():
    async def ask() -> bytes:
        with contextlib.closing(listen(ServerConfig(port=0), has_keys=False)) as listening:
            server = await asyncio.get_running_loop().create_server(Greeter, sock=listening)
            async with server:
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                told = await reader.read()
                writer.close()
                await writer.wait_closed()
                return told

    assert asyncio.run(ask()) == b"1"
