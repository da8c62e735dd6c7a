"""A connection to another broker: requests, and their responses in order.

Owns the connection, not the contents of requests. Brokers connect only through `Network`, so that a
simulated network can replace it.

1. Every `on_response` is called exactly once: with the response, or with None if the link broke.
2. `on_response` and the callback of `on_close` are called on the loop, never within `send`.
3. A response that does not belong to the oldest request in flight breaks the link.
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

OnResponse = Callable[[bytes | None], None]


class LinkBroken(Exception):
    """The connection ended, or no response arrived in time.

    The request might have been processed.
    """


class Refused(LinkBroken):
    """The port is closed, so the connection was refused."""


class Link(Protocol):
    @property
    def is_open(self) -> bool: ...

    @property
    def is_lost(self) -> bool:
        """Whether the peer closed or reset the connection."""

    def is_ended(self) -> bool:
        """Whether the peer has closed or reset the connection, even if no event reported it yet."""

    def send(self, frame: bytes, on_response: OnResponse) -> None:
        """Send a request: its frame without the length. The link sets the correlation id.

        `on_response` gets the frame of the response without its length. Several requests can be in
        flight.
        """

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` once after either side has ended the link, also if it already has."""

    def close(self) -> None: ...


class Network(Protocol):
    async def connect(self, host: str, port: int, timeout_s: float) -> Link:
        """Raises Refused, LinkBroken, or TimeoutError."""


async def call(
    link: Link, api_key: int, version: int, request: Mapping[str, Any], timeout_s: float
) -> dict[str, Any]:
    """Send one request, encoded by wire/codec.py. Closes the link if the response is too late."""
    from headrace.wire.codec import MalformedRequest, decode_response, encode_request

    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[bytes | None] = loop.create_future()

    def on_response(frame: bytes | None) -> None:
        if not outcome.done():
            outcome.set_result(frame)

    try:
        data = encode_request(api_key, version, 0, _CLIENT_ID, request)
    except OSError as error:
        raise _schema_not_loaded(error) from error
    link.send(data, on_response)
    timer = loop.call_later(timeout_s, on_response, None)
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
    except OSError as error:
        link.close()
        raise _schema_not_loaded(error) from error


def _schema_not_loaded(error: OSError) -> LinkBroken:
    """The codec opens files at the first use of an API. This fails without file descriptors."""
    return LinkBroken(f"cannot load the schema of the request: {error.strerror}")


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
        """Try all addresses of the host; "localhost" has one per address family."""
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
    """Send without delay, and detect within seconds that the other machine is unreachable.

    The kernel of a slow broker still responds to these probes.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_S_MAX - _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S_MAX * 1000)
