"""What crosses from kazoo's thread, and when a request is taken: without a server."""

from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import KeeperState

from headrace.coordination.access import ANONYMOUS
from headrace.coordination.former_session import Session
from headrace.coordination.kazoo_client import Client, NotSent, failed_operation, sync_request
from headrace.coordination.port import SessionState, WatchEvent


class Crossing:
    """A client with a simulated connection, and its notifications of the loop."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.client = Client(
            "127.0.0.1:1",
            6000,
            ANONYMOUS,
            lambda callback, *args: callback(*args),
            self._changed,
            self._event,
        )
        self.connection = -1
        # As if it had been started, so that requests go to its queue.
        self.client._connection._write_sock = self

    def send(self, _: bytes) -> None:
        """The pipe that wakes kazoo's thread."""

    def _changed(
        self, state: SessionState, connection: int, session: Session, timeout_ms: int
    ) -> None:
        self.told.append(state)
        self.connection = connection

    def _event(self, event: WatchEvent) -> None:
        self.told.append(event)

    def becomes(self, state: str) -> None:
        self.client._session_callback(state)

    def ask(self) -> None:
        self.client.submit(sync_request("/"), lambda value, error: self.told.append(type(error)))


def test_request_is_sent_only_on_the_connection_that_the_loop_has_seen() -> None:
    crossing = Crossing()
    crossing.becomes(KeeperState.CONNECTING)
    crossing.becomes(KeeperState.CONNECTED)
    crossing.ask()
    assert crossing.told == [SessionState.CONNECTED, NotSent]
    crossing.client.accept(crossing.connection)
    # The session ends and another begins, and the loop has not heard of it yet.
    for state in (KeeperState.CONNECTING, KeeperState.EXPIRED_SESSION, KeeperState.CONNECTING):
        crossing.becomes(state)
    crossing.ask()
    crossing.becomes(KeeperState.CONNECTED)
    crossing.ask()
    assert crossing.told[2:] == [
        SessionState.SUSPENDED,
        SessionState.LOST,
        NotSent,
        SessionState.CONNECTED,
        NotSent,
    ]
    crossing.client.accept(crossing.connection)
    crossing.ask()
    assert len(crossing.client._queue) == 1


def test_lost_connection_is_reported_before_lost_responses() -> None:
    for ended, told in (
        (KeeperState.CONNECTING, SessionState.SUSPENDED),
        (KeeperState.CLOSED, SessionState.LOST),
    ):
        crossing = Crossing()
        crossing.becomes(KeeperState.CONNECTING)
        crossing.becomes(KeeperState.CONNECTED)
        crossing.client.accept(crossing.connection)
        crossing.ask()
        crossing.becomes(ended)
        assert crossing.told == [SessionState.CONNECTED, told, ConnectionLoss]


def test_failed_operation_is_found_in_the_results_of_a_transaction() -> None:
    bad = BadVersionError()
    rest = [RuntimeInconsistency()]
    assert failed_operation(["/made", True]) is None
    assert failed_operation([RolledBackError(), bad, *rest]) == (1, bad)
    # What no release does, and must not pass for a success.
    assert failed_operation(["/made", rest[0]]) == (1, rest[0])
