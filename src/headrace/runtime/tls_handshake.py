"""The client's side of a TLS handshake, on the event loop, for connections between brokers."""

import asyncio
import socket
import ssl

from headrace.runtime.tls_stream import TlsStream
from headrace.security.tls import failure_text

_READ_BYTES = 16 * 1024


async def connect_tls(sock: socket.socket, context: ssl.SSLContext, host: str) -> TlsStream:
    """Raises OSError if the handshake fails, with the reason as its text."""
    loop = asyncio.get_running_loop()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=host)
    try:
        while not _is_done(tls):
            await loop.sock_sendall(sock, outgoing.read())
            data = await loop.sock_recv(sock, _READ_BYTES)
            if not data:
                raise ConnectionError("the connection was closed during the TLS handshake")
            incoming.write(data)
    except ssl.SSLError as error:
        raise OSError(failure_text(error)) from error
    await loop.sock_sendall(sock, outgoing.read())
    return TlsStream(sock, tls, incoming, outgoing)


def _is_done(tls: ssl.SSLObject) -> bool:
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
