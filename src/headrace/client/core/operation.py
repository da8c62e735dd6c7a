"""Client calls as generators: each yields the request or the event that it waits for. Pure.

An operation yields Ask, AskAll, Pause, Refresh or Wait, is resumed with the result, and returns its
own result. The engine runs it; the client API only waits for its Outcome. So the asyncio client,
the blocking one and tests with scripted brokers share the same code.
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
class Ask:
    """Send a request to a broker by id, to ANY, or to the CONTROLLER; resumes with the response."""

    node: int
    api_key: int
    fields: Mapping[str, Any]
    timeout_ms: float | None = None
    version_max: int = 0x7FFF
    lane: int = 0
    """Separate connections, for a request whose response can take long."""


@dataclass(frozen=True, slots=True)
class AskAll:
    """Send several requests simultaneously; resumes with a response or error for each."""

    asks: Sequence[Ask]


@dataclass(frozen=True, slots=True)
class Pause:
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Refresh:
    """Wait for metadata requested from now on; also include these topics from now on."""

    topics: tuple[str, ...] = ()
    create: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until an outcome is done, with a value or an error, or the time has passed."""

    outcome: "Outcome[Any]"
    timeout_ms: float | None = None


Step = Ask | AskAll | Pause | Refresh | Wait
Operation = Generator[Step, Any, T]


class Session(Protocol):
    """The engine, as an operation uses it."""

    @property
    def cluster(self) -> Cluster: ...
    @property
    def options(self) -> ClientOptions: ...
    @property
    def random(self) -> Random: ...
    @property
    def now_ms(self) -> float:
        """The time of the current input."""

    def unreachable(self) -> ClientError | None:
        """The error if no broker responds; None if one does."""

    def note_retry(self, what: str, error: ClientError) -> None:
        """Record why the running operation retries."""

    def forget_topic(self, topic: str) -> None:
        """Do not include a topic in metadata requests any longer."""


class Outcome(Generic[T]):
    """The result of an operation: a value or an error, set once."""

    __slots__ = ("_callbacks", "_error", "_value", "abandoned", "done")

    def __init__(self) -> None:
        self.done = False
        self.abandoned = False
        """Whether no caller waits for it."""
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


def backoff_ms(session: Session, attempt: int) -> float:
    """The pause after attempt number `attempt`, from 0: it increases, with 20 % jitter."""
    options = session.options
    base = backoff(options.retry_backoff_ms, options.retry_backoff_ms_max, attempt + 1)
    return base * (0.8 + 0.4 * session.random.random())


def retrying(
    session: Session,
    what: str,
    attempt: Callable[[], Operation[T]],
    timeout_ms: float | None = None,
) -> Operation[T]:
    """Run attempts until one succeeds, one fails permanently, or the time has passed."""
    if timeout_ms is None:
        timeout_ms = session.options.operation_timeout_ms
    deadline_ms = session.now_ms + timeout_ms
    number = 0
    while True:
        try:
            return (yield from attempt())
        except ClientError as error:
            if not error.retriable:
                raise
            failure = error
        session.note_retry(what, failure)
        pause_ms = backoff_ms(session, number)
        if session.now_ms + pause_ms >= deadline_ms:
            unreachable = session.unreachable()
            if unreachable is not None:
                raise unreachable from failure
            raise TimedOut(f"{what} did not succeed in {timeout_ms:.0f} ms: {failure}") from failure
        yield Pause(pause_ms)
        if failure.stale_metadata:
            try:
                yield Refresh()
            except ClientError as error:
                # The next attempt gets the same error, and checks the deadline.
                if not error.retriable:
                    raise
        number += 1
