"""Client calls as generators: each yields the request or the event that it waits for. Pure.

An operation yields Send, SendAll, Pause, RefreshMetadata or Wait, is resumed with the result, and
returns its own result. The engine runs the operation; the client API only waits for its Outcome. So
the asyncio client, the blocking one and tests with scripted brokers share the same code.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from headrace.client.core.errors import ClientError, TimedOut
from headrace.client.core.metadata import Cluster
from headrace.client.core.options import ClientOptions
from headrace.model.backoff import backoff

T = TypeVar("T")
ANY = -1_000_001
CONTROLLER = -1_000_002


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to broker `node`, to ANY or to the CONTROLLER. Its result is the response."""

    node: int
    api_key: int
    fields: Mapping[str, Any]
    timeout_ms: float | None = None
    version_max: int = 0x7FFF
    lane: int = 0
    """The lane of the request, see network.py. Lane 0 is shared."""


@dataclass(frozen=True, slots=True)
class SendAll:
    """Send several requests simultaneously. Its result is a list of responses and errors."""

    requests: Sequence[Send]


@dataclass(frozen=True, slots=True)
class Pause:
    duration_ms: float


@dataclass(frozen=True, slots=True)
class RefreshMetadata:
    """Wait for a new metadata response. This and all later requests also include these topics."""

    topics: tuple[str, ...] = ()
    create: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until an outcome is done, or the timeout has passed."""

    outcome: "Outcome[Any]"
    timeout_ms: float | None = None


Step = Send | SendAll | Pause | RefreshMetadata | Wait
Operation = Generator[Step, Any, T]


class OperationEngine(Protocol):
    """The engine: the attributes that an operation uses."""

    @property
    def cluster(self) -> Cluster: ...
    @property
    def options(self) -> ClientOptions: ...
    @property
    def random(self) -> Random: ...
    @property
    def now_ms(self) -> float:
        """The time of the latest call of the driver."""

    def unreachable(self) -> ClientError | None:
        """The error if no broker responds; None if one does."""

    def note_retry(self, what: str, error: ClientError) -> None:
        """Record why the running operation retries."""

    def forget_topic(self, topic: str) -> None:
        """Remove a topic from all later metadata requests."""


class Outcome(Generic[T]):
    """The result of an operation: a value or an error, set once."""

    __slots__ = ("_callbacks", "_error", "_value", "abandoned", "done")

    def __init__(self) -> None:
        self.done = False
        self.abandoned = False
        """Whether its caller has stopped waiting for it."""
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Outcome[T]], None]] = []

    def result(self) -> T:
        """Return the value, or raise the error; only after it is done."""
        assert self.done
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    @property
    def error(self) -> BaseException | None:
        return self._error

    def on_done(self, callback: Callable[["Outcome[T]"], None]) -> None:
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def succeed(self, value: T) -> None:
        self._value = value
        self._finish()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._finish()

    def _finish(self) -> None:
        assert not self.done
        self.done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def backoff_ms(engine: OperationEngine, attempt: int) -> float:
    """The pause after an attempt. The first attempt is 0. Pauses increase, with 20 % jitter."""
    options = engine.options
    base = backoff(options.retry_backoff_ms, options.retry_backoff_ms_max, attempt + 1)
    return base * (0.8 + 0.4 * engine.random.random())


def retrying(
    engine: OperationEngine,
    what: str,
    attempt: Callable[[], Operation[T]],
    timeout_ms: float | None = None,
) -> Operation[T]:
    """Repeat `attempt` until it succeeds, raises a permanent error, or the timeout has passed.

    `what` is the subject of the error message, for example "listing topics".
    """
    if timeout_ms is None:
        timeout_ms = engine.options.operation_timeout_ms
    deadline_ms = engine.now_ms + timeout_ms
    number = 0
    while True:
        try:
            return (yield from attempt())
        except ClientError as error:
            if not error.retriable:
                raise
            failure = error
        engine.note_retry(what, failure)
        pause_ms = backoff_ms(engine, number)
        if engine.now_ms + pause_ms >= deadline_ms:
            unreachable = engine.unreachable()
            if unreachable is not None:
                raise unreachable from failure
            raise TimedOut(f"{what} did not succeed in {timeout_ms:.0f} ms: {failure}") from failure
        yield Pause(pause_ms)
        if failure.stale_metadata:
            try:
                yield RefreshMetadata()
            except ClientError as error:
                # The next attempt gets the same error, and checks the deadline.
                if not error.retriable:
                    raise
        number += 1
