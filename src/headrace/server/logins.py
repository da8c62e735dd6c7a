"""Connections whose clients have not logged in yet. A login turns each into a `Connection`.

Only SASL listeners load this module. It owns the sockets until a login succeeds; the decisions are
in security/sasl_machine.py. Key derivation runs on a thread.

1. A login that has not ended LOGIN_SECONDS_MAX after the accept is closed, unless the broker checks
   its password or token, or delays its response.
2. A frame has at most sasl.server.max.receive.size bytes. All logins together buffer at most
   BUFFERED_BYTES_MAX, and use at most half of the connections. Beyond that, the oldest login ends;
   for memory, the oldest one that buffers input.
3. A failed login gets its response at a fixed time after its request, however long the check takes.
   The secret of brokers cannot be guessed, so their listener has no delay and no limit. So a client
   at a broker's address cannot prevent the broker's logins.
4. If a credential is deleted or replaced, the connections that logged in with it are closed. A
   client that has requested such a change has RESPONSE_SECONDS_MAX to receive the response.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.cluster.changes import ImageChange
from headrace.model.sasl import OAUTHBEARER, SCRAM_SHA_256
from headrace.requests.context import BrokerContext
from headrace.runtime.worker import Worker
from headrace.security.bearer import BearerFailed, Claims
from headrace.security.brokers import broker_credential, salt_secret
from headrace.security.failures import FailedLogins
from headrace.security.passwords import KnownPasswords
from headrace.security.plain import Work, failing_work, verifies_plain
from headrace.security.sasl_machine import (
    LOGIN_SECONDS_MAX,
    Action,
    CheckBearer,
    Done,
    Failed,
    Reply,
    SaslMachine,
    Verify,
)
from headrace.security.scram import NONCE_BYTES, Credential
from headrace.security.session import Session
from headrace.security.unknown_users import UnknownUsers
from headrace.security.users import BROKER_USER, ended_credentials, stored_credential
from headrace.server.connection import Connection
from headrace.server.foreign import reason_to_reject
from headrace.server.listener import Admission
from headrace.server.plane import Plane
from headrace.server.relogins import Relogins
from headrace.server.token_logins import TokenLogins
from headrace.server.transport import Transport
from headrace.wire.apis import (
    ALTER_USER_SCRAM_CREDENTIALS,
    EXPIRE_DELEGATION_TOKEN,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from headrace.wire.codec import preload

if TYPE_CHECKING:
    from headrace.server.bearer_keys import BearerKeys

CHECKS_MAX = 256
"""The maximum number of passwords that a thread checks, or that wait for it."""
RESPONSE_SECONDS_MAX = 0.2
BUFFERED_BYTES_MAX = 16 * 1024 * 1024
READ_BYTES = 16 * 1024
_LENGTH_BYTES = 4
_CHANGES = frozenset({ALTER_USER_SCRAM_CREDENTIALS, EXPIRE_DELEGATION_TOKEN})
"""Requests that can end the session of their own connection."""
_log = logging.getLogger(__name__)

Warn = Callable[[str, str], None]
"""Logs the reason for closing a client's connection. Does not log an empty reason."""


class Logins:
    def __init__(
        self, broker: BrokerContext, plane: Plane, admission: Admission, warn: Warn
    ) -> None:
        config = broker.config
        self.plane = plane
        self.frame_bytes_max = config.get_int("sasl.server.max.receive.size")
        self.failures = FailedLogins(
            config.get_int("connection.failed.authentication.delay.ms") / 1000
        )
        self.passwords = KnownPasswords(os.urandom(32))
        self.open: dict[_Login, None] = {}
        """Oldest first."""
        self.buffered = 0
        """The bytes of input that all logins hold."""
        self.holding: dict[_Login, None] = {}
        """Logins with input that was not handled yet, oldest first."""
        self.scratch = memoryview(bytearray(READ_BYTES))
        self.checks = 0
        self._work: Work | None = None
        """The work of a failed check (security/plain.py); None if it must be computed again."""
        self._unknown: UnknownUsers | None = None
        """None before the first login."""
        self._broker = broker
        self._admission = admission
        self._warn = warn
        self.loop = asyncio.get_running_loop()
        self.worker = Worker("login", self.loop)
        self.relogins = Relogins(self)
        self._tokens = TokenLogins(
            config.get_optional_str("delegation.token.secret.key") or "",
            broker.image.tokens,
            broker.clock,
            self.worker,
        )
        self._bearer_keys = self._make_bearer_keys()
        broker.controller.on_change(self._changed)
        for version in range(3):
            preload(SASL_AUTHENTICATE, version)
        for version in range(2):
            preload(SASL_HANDSHAKE, version)

    def begin(
        self, listener: str, transport: Transport, name: str, host: str, accepted_at: float
    ) -> None:
        is_internal = listener == self._broker.config.internal_listener
        if not is_internal and not self.failures.admits(host, self.plane.now):
            self._admission.log_rejection(host, "too many failed logins")
            self._admission.leave(host)
            transport.close()
            return
        if len(self.open) > self._admission.limit() // 2:
            next(iter(self.open)).end("too many clients have not logged in")
        machine = self.machine(listener, is_internal, accepted_at)
        login = _Login(self, machine, transport, name, host, listener, is_internal)
        self.open[login] = None
        if transport.pending > 0:
            login.readable()

    def machine(
        self, listener: str, is_internal: bool, now: float, former: Session | None = None
    ) -> SaslMachine:
        """A new login; `former` is the session that it renews."""
        config = self._broker.config
        return SaslMachine(
            config.mechanisms[listener],
            self._credential_of_broker if is_internal else self._credential_of_user,
            self._unknown_users(),
            _nonce,
            now,
            lifetime_of=lambda mechanism: (
                0.0 if is_internal else config.session_seconds(listener, mechanism)
            ),
            former=former,
            tokens=None if is_internal or not self._tokens.key else self._tokens.find,
        )

    def _make_bearer_keys(self) -> "BearerKeys | None":
        offered = self._broker.config.mechanisms.values()
        if not any(OAUTHBEARER in mechanisms for mechanisms in offered):
            return None
        from headrace.server.bearer_keys import BearerKeys

        clock = self._broker.clock
        return BearerKeys(self._broker.config, clock.wall_ms, clock.monotonic, self.loop)

    def wall_s(self) -> float:
        """Seconds since 1970."""
        return self._broker.clock.wall_ms() / 1000

    async def verify_bearer(self, token: str) -> Claims | BearerFailed:
        assert self._bearer_keys is not None
        try:
            return await self._bearer_keys.verify(token)
        except BearerFailed as failed:
            return failed

    def check_job(self, check: Verify) -> Callable[[], bool]:
        """The job that checks a password. The worker thread must run it."""
        if self._work is None:
            self._work = failing_work(self._broker.image.users)
        return partial(verifies_plain, check.scram, check.credential, check.password, self._work)

    def _unknown_users(self) -> UnknownUsers:
        if self._unknown is None:
            secret = salt_secret(self._broker.controller.secret.text)
            self._unknown = UnknownUsers(secret, self._broker.image.users)
        return self._unknown

    def _credential_of_user(self, mechanism: str, user: str) -> Credential | None:
        return stored_credential(self._broker.image.users, mechanism, user)

    def _credential_of_broker(self, mechanism: str, user: str) -> Credential | None:
        if user != BROKER_USER or mechanism != SCRAM_SHA_256:
            return None
        return broker_credential(self._broker.controller.secret.text)

    def release(self) -> None:
        """End the oldest logins that buffer input, while all logins use too much memory."""
        while self.buffered > BUFFERED_BYTES_MAX:
            next(iter(self.holding)).end("clients that have not logged in use too much memory")

    def ended(self, login: "_Login", reason: str) -> None:
        del self.open[login]
        self._admission.leave(login.host)
        self._warn(login.name, reason)

    def succeeded(self, login: "_Login", session: Session, rest: bytes) -> None:
        """Serve the client's requests; `rest` are bytes that came after the login."""
        del self.open[login]
        plane = self.plane
        plane.now = plane.monotonic()
        connection = Connection(
            plane,
            login.transport,
            login.name,
            login.listener,
            login.is_internal,
            plane.now,
            session,
        )
        plane.add(connection)
        if not login.is_internal:
            self._broker.audit.logged_in(session.principal, login.host, login.listener)
        if rest:
            plane.appends.update_time()
            connection.input = rest
            connection.parse()
            plane.deliver()
        if login.transport.pending > 0 and not connection.closed:
            plane.postpone(connection)

    def report(self, login: "_Login", reason: str) -> None:
        """Write a rejected login to the audit log."""
        self._broker.audit.login_failed(login.host, login.listener, reason)

    def expire(self, now: float) -> None:
        for login in [each for each in self.open if each.is_late(now)]:
            login.end(f"it did not log in within {LOGIN_SECONDS_MAX:.0f} s")

    def close(self) -> None:
        for login in list(self.open):
            login.end("")
        self.worker.stop(finish=False)
        if self._bearer_keys is not None:
            self._bearer_keys.close()

    def _changed(self, change: ImageChange) -> None:
        if change.users:
            self._work = None
        self._tokens.derive(change.new_tokens)
        for token_id in change.removed_tokens:
            self._close_sessions_of_token(token_id)
        for user, before, after in change.users:
            if self._unknown is not None:
                self._unknown.change(before, after)
            ended = ended_credentials(before, after)
            if ended:
                self._close_sessions(user, ended)

    def _close_sessions(self, user: str, credentials: list[str]) -> None:
        count = 0
        for connection in list(self.plane.connections.values()):
            session = connection.session
            is_same = session.user == user and session.credential in credentials
            if not is_same or connection.is_internal:
                continue
            count += 1
            self._close_soon(connection)
        _log.info("credential deleted or replaced: user=%r closed_connections=%d", user, count)

    def _close_sessions_of_token(self, token_id: str) -> None:
        for connection in list(self.plane.connections.values()):
            session = connection.session
            if session.is_token and session.credential == token_id:
                self._close_soon(connection)

    def _close_soon(self, connection: Connection) -> None:
        if any(exchange.api_key in _CHANGES for exchange in connection.exchanges):
            # A client that changes its own user or token receives the response. Its next request
            # closes the connection.
            connection.expires_at = self.plane.monotonic()
            self.loop.call_later(RESPONSE_SECONDS_MAX, self.plane.close, connection, "")
        else:
            self.plane.close(connection, "")


class _Login:
    """One connection, until its client has logged in or failed."""

    def __init__(
        self,
        logins: Logins,
        machine: SaslMachine,
        transport: Transport,
        name: str,
        host: str,
        listener: str,
        is_internal: bool,
    ) -> None:
        self.transport = transport
        self.name = name
        self.host = host
        self.listener = listener
        self.is_internal = is_internal
        self._logins = logins
        self._machine = machine
        self._input = bytearray()
        self._is_open = True
        self._is_checking = False
        self._task: asyncio.Task[None] | None = None
        self._delayed: asyncio.TimerHandle | None = None
        self._received_at = 0.0
        logins.loop.add_reader(transport.fd, self.readable)

    def is_late(self, now: float) -> bool:
        """Whether the client has exceeded its time. False while the broker checks or delays."""
        is_waiting = not self._is_checking and self._delayed is None
        return is_waiting and now >= self._machine.deadline

    def readable(self) -> None:
        self._read()
        while self._is_open and self.transport.pending > 0:
            self._read()

    def _read(self) -> None:
        view = self._logins.scratch
        try:
            size = self.transport.receive_into(view)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if not size:
            self.end("")
            return
        self._input += view[:size]
        self._logins.buffered += size
        try:
            self._parse()
        except Exception:  # noqa: BLE001 (other connections continue)
            _log.exception("login failed with an internal error: connection=%s", self.name)
            self.end("an internal error of the broker")
        if not self._input:
            self._logins.holding.pop(self, None)
        else:
            self._logins.holding[self] = None
            self._logins.release()

    def _parse(self) -> None:
        while self._is_open and not self._is_checking and self._delayed is None:
            if len(self._input) < _LENGTH_BYTES:
                return
            size = int.from_bytes(self._input[:_LENGTH_BYTES], "big", signed=True)
            if not 0 <= size <= self._logins.frame_bytes_max:
                self.end(reason_to_reject(bytes(self._input[:4]), 0, size))
                return
            end = _LENGTH_BYTES + size
            if len(self._input) < end:
                return
            frame = bytes(self._input[_LENGTH_BYTES:end])
            del self._input[:end]
            self._logins.buffered -= end
            self._received_at = self._logins.plane.monotonic()
            self._act(self._machine.receive(frame, self._received_at))

    def _act(self, action: Action) -> None:
        match action:
            case Reply(data):
                self._send(data)
            case Done(data, session):
                if self._send(data):
                    rest = self._leave()
                    self._logins.succeeded(self, session, rest)
            case Verify():
                self._check(action)
            case CheckBearer(token):
                self._is_checking = True
                self._task = self._logins.loop.create_task(self._check_bearer(token))
            case Failed():
                self._fail(action)

    def _check(self, check: Verify) -> None:
        logins = self._logins
        now = logins.plane.monotonic()
        if check.is_known and logins.passwords.knows(check.credential, check.password, now):
            self._act(self._machine.verified(True, now))
            return
        if logins.checks >= CHECKS_MAX:
            self.end(f"{CHECKS_MAX} passwords already wait to be verified")
            return
        logins.checks += 1
        self._is_checking = True
        logins.worker.submit(logins.check_job(check), partial(self._checked, check))

    def _checked(self, check: Verify, result: object, error: BaseException | None) -> None:
        logins = self._logins
        logins.checks -= 1
        self._is_checking = False
        if not self._is_open:
            return
        if error is not None:
            _log.error("password check failed with an internal error", exc_info=error)
        is_valid = result is True
        if is_valid and check.is_known:
            logins.passwords.add(check.credential, check.password, logins.plane.monotonic())
        self._act(self._machine.verified(is_valid, logins.plane.monotonic()))
        self._parse()

    async def _check_bearer(self, token: str) -> None:
        logins = self._logins
        result = await logins.verify_bearer(token)
        self._is_checking = False
        if self._is_open:
            now = logins.plane.monotonic()
            self._act(self._machine.bearer_checked(result, now, logins.wall_s()))
            self._parse()

    def _fail(self, failed: Failed) -> None:
        logins = self._logins
        if failed.is_rejected:
            logins.report(self, failed.reason)
        if self.is_internal or not failed.is_rejected:
            self._finish(failed)
            return
        delay = logins.failures.failed(self.host, self._received_at)
        if delay is None:
            self.end(failed.reason)
            return
        logins.loop.remove_reader(self.transport.fd)
        left = self._received_at + delay - logins.plane.monotonic()
        self._delayed = logins.loop.call_later(max(left, 0.0), self._finish, failed)

    def _finish(self, failed: Failed) -> None:
        if failed.data is None or self._send(failed.data):
            self.end(failed.reason)

    def _send(self, data: bytes) -> bool:
        """Send a frame. The client has received the earlier frames, so this one fits."""
        frame = len(data).to_bytes(_LENGTH_BYTES, "big") + data
        try:
            is_sent = self.transport.send(frame, False) == len(frame)
        except OSError:
            is_sent = False
        if not is_sent:
            self.end("")
        return is_sent

    def end(self, reason: str) -> None:
        if not self._is_open:
            return
        self._leave()
        # Close later: no new socket may get this descriptor before the loop has forgotten it.
        self._logins.loop.call_soon(self.transport.close)
        self._logins.ended(self, reason)

    def _leave(self) -> bytes:
        """Stop reading. Returns the input that was not handled."""
        self._is_open = False
        self._logins.loop.remove_reader(self.transport.fd)
        if self._delayed is not None:
            self._delayed.cancel()
            self._logins.failures.ended(self.host)
        rest = bytes(self._input)
        self._logins.buffered -= len(rest)
        self._logins.holding.pop(self, None)
        self._input.clear()
        return rest


def _nonce() -> str:
    return os.urandom(NONCE_BYTES).hex()
