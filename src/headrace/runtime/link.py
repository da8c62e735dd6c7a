"""A connection to another broker: requests, and their responses in order.

Owns how brokers find each other's sockets, and nothing of what is said over them. All that a broker
says to another goes through `Network`, so that a simulated one can take its place.

1. Every `answered` is called exactly once: with the response, or with None if the link broke.
2. `answered` and the callback of `on_close` are called on the loop, never within `send`.
3. A response that does not belong to the oldest open request breaks the link.
4. No memory is allocated by a size that the peer announces.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headrace.runtime.socket_link import SocketLink

_CLIENT_ID = "headrace"
_SILENCE_S_MAX = 7
_PROBES = 4

Answered = Callable[[bytes | None], None]


class LinkBroken(Exception):
    """The connection ended, or the answer did not come in time. What was asked may be done."""


class Refused(LinkBroken):
    """Nobody listens there."""


class Link(Protocol):
    @property
    def is_open(self) -> bool: ...

    @property
    def is_lost(self) -> bool:
        """Whether the peer closed or reset the connection."""

    def is_ended(self) -> bool:
        """Whether the peer has closed or reset the connection, even if no event reported it yet."""

    def send(self, frame: bytes, answered: Answered) -> None:
        """Send a request: its frame without the length; the correlation id is the link's to set.

        The answer comes as a frame without its length. Several may be outstanding.
        """

    def on_close(self, tell: Callable[[], None]) -> None:
        """Be told once when the link has ended, whoever ended it; soon if it has already."""

    def close(self) -> None: ...


class Network(Protocol):
    async def connect(self, host: str, port: int, timeout_s: float) -> Link:
        """Raises Refused, LinkBroken, or TimeoutError."""


async def call(
    link: Link, api_key: int, version: int, request: Mapping[str, Any], timeout_s: float
) -> dict[str, Any]:
    """Ask once through the codec of the cold APIs; a link that answers too late is closed."""
    from headrace.wire.codec import MalformedRequest, decode_response, encode_request

    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[bytes | None] = loop.create_future()

    def answered(frame: bytes | None) -> None:
        if not outcome.done():
            outcome.set_result(frame)

    link.send(encode_request(api_key, version, 0, _CLIENT_ID, request), answered)
    timer = loop.call_later(timeout_s, answered, None)
    try:
        frame = await outcome
    finally:
        timer.cancel()
    if frame is None:
        was_open = link.is_open
        link.close()
        raise LinkBroken("no response in time" if was_open else "the connection was closed")
    try:
        return decode_response(api_key, version, frame)[1]
    except MalformedRequest as error:
        link.close()
        raise LinkBroken(f"the response is not valid: {error}") from None


class SocketNetwork:
    """TCP, through the running loop."""

    async def connect(self, host: str, port: int, timeout_s: float) -> Link:
        async with asyncio.timeout(timeout_s):
            try:
                return SocketLink(await self._connect(host, port))
            except ConnectionRefusedError as error:
                raise Refused(f"{host}:{port} refuses connections") from error
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise
                raise LinkBroken(f"{host}:{port} cannot be reached: {error.strerror}") from error

    async def _connect(self, host: str, port: int) -> socket.socket:
        """Try every address of the host; "localhost" has one of each family."""
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                tune(sock)
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise failure or OSError(f"{host} has no address")


def tune(sock: socket.socket) -> None:
    """Send at once, and notice within seconds that the other machine is gone.

    A broker that is only slow is not gone: its kernel goes on to answer.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S_MAX - _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S_MAX * 1000)
