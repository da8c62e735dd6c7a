"""Re-authentication (KIP-368): a client logs in again on the same connection.

Only SASL listeners load this module. A client logs in again before its session expires, with
SaslHandshake and SaslAuthenticate, between its other requests.

1. Only a session with a lifetime can be renewed, and at most once per second, unless it expires
   within a second.
2. Neither mechanism nor principal can change. A failed login ends the session.
3. A failed login is delayed and counted like any other failed login.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace.security.sasl_machine import (
    Action,
    CheckBearer,
    Done,
    Failed,
    Reply,
    SaslMachine,
    Verify,
)
from headrace.server.connection import Connection
from headrace.wire.apis import SASL_HANDSHAKE
from headrace.wire.cursor import MalformedRequest

if TYPE_CHECKING:
    from headrace.server.logins import Logins

INTERVAL_SECONDS_MIN = 1.0
RESPONSE_SECONDS_MAX = 0.2
_log = logging.getLogger(__name__)


class Relogins:
    def __init__(self, logins: "Logins") -> None:
        self._logins = logins
        self._machines: dict[Connection, SaslMachine] = {}
        self._renewed_at: dict[Connection, float] = {}

    def handle(
        self, connection: Connection, api_key: int, frame: bytes
    ) -> bytes | Awaitable[bytes] | None:
        """The response to a request of a login; None if no login is expected.

        Raises MalformedRequest if the connection must be closed without a response.
        """
        now = self._logins.plane.monotonic()
        if api_key == SASL_HANDSHAKE:
            if not self._can_begin(connection, now):
                return None
            self._machines[connection] = self._logins.machine(
                connection.listener, connection.is_internal, now, connection.session
            )
            self._renewed_at[connection] = now
        machine = self._machines.get(connection)
        if machine is None:
            return None
        return self._act(connection, machine, machine.receive(frame, now), now)

    def _can_begin(self, connection: Connection, now: float) -> bool:
        if connection.session.expires_at == 0.0:
            return False
        renewed_at = self._renewed_at.get(connection, now - INTERVAL_SECONDS_MIN)
        is_short = connection.session.expires_at - now < INTERVAL_SECONDS_MIN
        return is_short or now - renewed_at >= INTERVAL_SECONDS_MIN

    def forget(self, connection: Connection) -> None:
        self._machines.pop(connection, None)
        self._renewed_at.pop(connection, None)

    def _act(
        self, connection: Connection, machine: SaslMachine, action: Action, received_at: float
    ) -> bytes | Awaitable[bytes]:
        match action:
            case Reply(data):
                return data
            case Done(data, session):
                del self._machines[connection]
                connection.session = session
                connection.expires_at = session.expires_at
                _log.debug(
                    "logged in again: principal=%s peer=%s", session.principal, connection.name
                )
                return data
            case Verify():
                return self._check(connection, machine, action, received_at)
            case CheckBearer(token):
                return self._check_bearer(connection, machine, token, received_at)
            case Failed():
                return self._fail(connection, action, received_at)

    async def _check(
        self, connection: Connection, machine: SaslMachine, check: Verify, received_at: float
    ) -> bytes:
        logins = self._logins
        is_valid = check.is_known and logins.passwords.knows(
            check.credential, check.password, received_at
        )
        if not is_valid:
            is_valid = await logins.worker.run(logins.check_job(check))
        now = logins.plane.monotonic()
        response = self._act(connection, machine, machine.verified(is_valid, now), received_at)
        return response if isinstance(response, bytes) else await response

    async def _check_bearer(
        self, connection: Connection, machine: SaslMachine, token: str, received_at: float
    ) -> bytes:
        logins = self._logins
        result = await logins.verify_bearer(token)
        action = machine.bearer_checked(result, logins.plane.monotonic(), logins.wall_s())
        response = self._act(connection, machine, action, received_at)
        return response if isinstance(response, bytes) else await response

    def _fail(self, connection: Connection, failed: Failed, received_at: float) -> Awaitable[bytes]:
        self._machines.pop(connection, None)
        # The next request closes the connection.
        connection.expires_at = received_at
        if failed.data is None:
            raise MalformedRequest(failed.reason)
        return self._delayed(connection, failed, failed.data, received_at)

    async def _delayed(
        self, connection: Connection, failed: Failed, data: bytes, received_at: float
    ) -> bytes:
        logins = self._logins
        delay = logins.failures.failed(connection.host, received_at) if failed.is_rejected else None
        try:
            if delay is not None:
                left = received_at + delay - logins.plane.monotonic()
                await asyncio.sleep(max(left, 0.0))
        finally:
            if delay is not None:
                logins.failures.ended(connection.host)
            # The client receives the response first.
            logins.loop.call_later(
                RESPONSE_SECONDS_MAX, logins.plane.close, connection, failed.reason
            )
        return data
