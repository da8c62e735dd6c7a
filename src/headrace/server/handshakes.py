"""TLS handshakes of accepted connections. They become logins or connections when they are done.

Only listeners with TLS load this module. It owns the sockets until the handshake is done. The steps
of a handshake run on a thread, because each takes up to a millisecond; the socket stays on the
loop. The last step of TLS 1.3 without a certificate of the client runs on the loop: it takes less
time than to wake up the thread and the loop.

1. A handshake and the login after it must end within LOGIN_SECONDS_MAX after the accept.
2. Handshakes use at most half of the connections; beyond that, the oldest one ends. Each buffers at
   most INPUT_BYTES_MAX. It has at most one step on the thread at a time, and none while it waits
   for its client.
3. A client whose certificate has no valid principal is disconnected.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import NamedTuple

from headrace.model.sasl import principal_of
from headrace.runtime.tls_listeners import TlsListener
from headrace.runtime.tls_stream import TlsStream
from headrace.runtime.worker import Worker
from headrace.security.distinguished_name import InvalidCertificate, subject_of
from headrace.security.principal_rules import user_of
from headrace.security.sasl_machine import LOGIN_SECONDS_MAX
from headrace.security.session import ANONYMOUS_SESSION, Session
from headrace.security.tls import failure_text
from headrace.server.connection import Connection
from headrace.server.foreign import reason_to_reject_tls
from headrace.server.listener import Admission, Begin
from headrace.server.plane import Plane
from headrace.server.tls_transport import TlsTransport
from headrace.server.transport import Transport

READ_BYTES = 16 * 1024
INPUT_BYTES_MAX = 256 * 1024
_RECORD_HEADER_BYTES = 5
_APPLICATION_DATA = 23
_log = logging.getLogger(__name__)

Warn = Callable[[str, str], None]
"""Logs the reason for closing a client's connection. Does not log an empty reason."""


class Step(NamedTuple):
    """The result of one step of a handshake."""

    output: bytes
    is_done: bool
    failure: str = ""
    session: Session = ANONYMOUS_SESSION


class Handshakes:
    def __init__(self, plane: Plane, admission: Admission, warn: Warn) -> None:
        self.plane = plane
        self.loop = asyncio.get_running_loop()
        self.worker = Worker("tls", self.loop)
        self.open: dict[_Handshake, None] = {}
        """Oldest first."""
        self.done = 0
        self._admission = admission
        self._warn = warn

    def begin(
        self,
        listener: TlsListener,
        login: Begin | None,
        transport: Transport,
        name: str,
        host: str,
        accepted_at: float,
    ) -> None:
        """`login` follows the handshake. Without it, the certificate determines the principal."""
        if len(self.open) > self._admission.limit() // 2:
            next(iter(self.open)).end("too many TLS handshakes are in progress")
        self.open[_Handshake(self, listener, login, transport, name, host, accepted_at)] = None

    def ended(self, handshake: "_Handshake", reason: str) -> None:
        del self.open[handshake]
        self._admission.leave(handshake.host)
        self._warn(handshake.name, reason)

    def succeeded(self, handshake: "_Handshake", transport: TlsTransport, session: Session) -> None:
        del self.open[handshake]
        self.done += 1
        listener, plane = handshake.listener, self.plane
        if handshake.login is not None:
            handshake.login(transport, handshake.name, handshake.host, handshake.accepted_at)
            return
        plane.now = plane.monotonic()
        connection = Connection(
            plane,
            transport,
            handshake.name,
            listener.name,
            listener.is_internal,
            plane.now,
            session,
        )
        plane.add(connection)
        if transport.pending > 0:
            plane.postpone(connection)

    def expire(self, now: float) -> None:
        for each in [each for each in self.open if now >= each.accepted_at + LOGIN_SECONDS_MAX]:
            each.end(f"its TLS handshake was not done within {LOGIN_SECONDS_MAX:.0f} s")

    def close(self) -> None:
        for handshake in list(self.open):
            handshake.end("")
        self.worker.stop(finish=False)


class _Handshake:
    def __init__(
        self,
        handshakes: Handshakes,
        listener: TlsListener,
        login: Begin | None,
        transport: Transport,
        name: str,
        host: str,
        accepted_at: float,
    ) -> None:
        self.listener = listener
        self.login = login
        self.name = name
        self.host = host
        self.accepted_at = accepted_at
        self._handshakes = handshakes
        self._sock = transport.sock
        self._fd = transport.fd
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = listener.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._rules = listener.settings.rules
        self._asks_for_certificate = listener.context.verify_mode != ssl.CERT_NONE
        self._received = 0
        self._output = b""
        self._is_next_short = False
        """Whether the next step takes so little time that it runs on the loop."""
        self._is_open = True
        handshakes.loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.end("")
            return
        if self._received == 0:
            reason = reason_to_reject_tls(data)
            if reason:
                self.end(reason)
                return
        self._received += len(data)
        if self._received > INPUT_BYTES_MAX:
            self.end(f"its TLS handshake has more than {INPUT_BYTES_MAX} bytes")
            return
        # The thread uses the buffers now; the rest waits in the socket.
        self._handshakes.loop.remove_reader(self._fd)
        if not self._is_next_short:
            self._handshakes.worker.submit(lambda: self._step(data), self._stepped)
            return
        try:
            step = self._step(data)
        except Exception as error:  # noqa: BLE001 (other connections continue)
            self._stepped(None, error)
        else:
            self._stepped(step, None)

    def _step(self, data: bytes) -> Step:
        """Runs on the thread."""
        if not self._is_open:
            return Step(b"", False)
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return Step(self._outgoing.read(), False)
        except ssl.SSLError as error:
            return Step(self._outgoing.read(), False, failure_text(error))
        try:
            session = self._session()
        except InvalidCertificate as error:
            return Step(self._outgoing.read(), False, str(error))
        return Step(self._outgoing.read(), True, "", session)

    def _session(self) -> Session:
        certificate = self._tls.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS_SESSION
        subject = subject_of(certificate)
        user = user_of(subject, list(self._rules))
        if user is None:
            raise InvalidCertificate(
                f"no rule of ssl.principal.mapping.rules matches the subject {subject}"
            )
        return Session(principal_of(user))

    def _stepped(self, result: object, error: BaseException | None) -> None:
        if not self._is_open:
            return
        if error is not None:
            _log.error("TLS handshake failed with an internal error", exc_info=error)
            self.end("an internal error of the broker")
            return
        assert isinstance(result, Step)
        self._is_next_short = not self._asks_for_certificate and is_encrypted(result.output)
        self._output += result.output
        if not self._send(is_last=bool(result.failure)):
            return
        if result.failure:
            self.end(result.failure)
        elif result.is_done:
            self._finish(result.session)
        else:
            self._handshakes.loop.add_reader(self._fd, self._readable)

    def _finish(self, session: Session) -> None:
        self._is_open = False
        stream = TlsStream(self._sock, self._tls, self._incoming, self._outgoing)
        self._handshakes.succeeded(self, TlsTransport(self._sock, stream), session)

    def _send(self, *, is_last: bool) -> bool:
        """Send the output of a step. The client has received the earlier output, so this fits."""
        try:
            is_sent = self._sock.send(self._output) == len(self._output) if self._output else True
        except OSError:
            is_sent = False
        self._output = b""
        if not is_sent and not is_last:
            self.end("")
        return is_sent or is_last

    def end(self, reason: str) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._handshakes.loop.remove_reader(self._fd)
        # Close later: no new socket may get this descriptor before the loop has forgotten it.
        self._handshakes.loop.call_soon(self._sock.close)
        self._handshakes.ended(self, reason)


def is_encrypted(flight: bytes) -> bool:
    """Whether the last record of a server's flight is encrypted, as only TLS 1.3 does it."""
    at, kind = 0, 0
    while at + _RECORD_HEADER_BYTES <= len(flight):
        kind = flight[at]
        at += _RECORD_HEADER_BYTES + int.from_bytes(flight[at + 3 : at + 5], "big")
    return kind == _APPLICATION_DATA
