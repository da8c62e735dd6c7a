"""Runs the engine on an asyncio event loop.

Carries out the effects of the engine, and reports events and the time to it. The engine makes all
decisions. asyncio encrypts connections.
"""

import asyncio
import inspect
import socket
import time
from collections.abc import Awaitable, Callable
from random import SystemRandom
from typing import TypeVar

from headrace.client.core.engine import Engine
from headrace.client.core.network import Close, Effect, Open, Write
from headrace.client.core.operation import Operation, Outcome
from headrace.client.core.options import ClientOptions
from headrace.client.core.sockets import describe_failure, set_socket_options
from headrace.model.topics import TopicPartition

T = TypeVar("T")


OnPartitions = Callable[[tuple[TopicPartition, ...]], Awaitable[None] | None]
"""A function or coroutine function of the program. Its argument is a tuple of partitions."""


def monotonic_ms() -> float:
    return time.monotonic() * 1000


async def notify(callback: OnPartitions | None, partitions: tuple[TopicPartition, ...]) -> None:
    """Call a callback of the program, if it is set."""
    called = None if callback is None else callback(partitions)
    if inspect.isawaitable(called):
        await called


class DriverFactory:
    """The base class of Client that creates its driver."""

    def _new_driver(self, options: ClientOptions) -> "Driver":
        return Driver(options)


class TimeBetweenCalls:
    """Does nothing: between two calls of the program, the event loop does the I/O.

    The class of the blocking API does the I/O that was delayed.
    """

    def __init__(self, _driver: "Driver") -> None:
        pass

    def call_started(self, _request_heartbeat: Callable[[], None]) -> None:
        pass

    def call_waited(self) -> None:
        pass


class Driver:
    def __init__(self, options: ClientOptions) -> None:
        self.engine = Engine(options, random=SystemRandom(), now_ms=monotonic_ms())
        self._loop = asyncio.get_running_loop()
        self._tls = options.ssl
        self._transports: dict[int, asyncio.Transport] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pump_is_due = False

    def now_ms(self) -> float:
        """The time of the engine."""
        return monotonic_ms()

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation. If the caller is cancelled, the operation is cancelled."""
        return await self.wait(self.engine.start(operation))

    async def wait(self, outcome: Outcome[T]) -> T:
        if not outcome.done:
            future: asyncio.Future[None] = self._loop.create_future()

            def wake(_: Outcome[T]) -> None:
                if not future.done():
                    future.set_result(None)

            outcome.on_done(wake)
            self.pump_soon()
            try:
                await future
            except asyncio.CancelledError:
                outcome.abandoned = True
                self.engine.cancel(outcome)
                raise
        return outcome.result()

    async def poll_until(self, ready: Outcome[None], deadline_ms: float | None) -> bool:
        """Wait until `ready` is done. Returns False after the deadline."""
        self.pump_soon()
        if deadline_ms is not None and not ready.done:
            self._after(deadline_ms - monotonic_ms(), ready)
        await self.wait(ready)
        return deadline_ms is None or monotonic_ms() < deadline_ms

    def _after(self, duration_ms: float, outcome: Outcome[None]) -> None:
        """Complete an outcome after this time, if it is not done."""

        def finish() -> None:
            if not outcome.done:
                outcome.succeed(None)

        timer = self._loop.call_later(max(duration_ms, 0) / 1000, finish)
        outcome.on_done(lambda _: timer.cancel())

    def do_io(self) -> None:
        """Do the I/O that is possible without waiting, at the end of this loop iteration."""
        self.pump_soon()

    def wake(self) -> None:
        """Let the engine start new work."""
        self.pump_soon()

    def record_appended(self, _is_full: bool, _now_ms: float) -> None:
        """A record was added to a batch, which might be full."""
        self.pump_soon()

    def pump_soon(self) -> None:
        """Poll the engine at the end of this loop iteration."""
        if not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        if self.engine.closed:
            return
        self._carry_out(self.engine.poll(monotonic_ms()))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wakeup_ms = self.engine.next_wakeup_ms()
        if wakeup_ms is not None:
            delay_s = max(wakeup_ms - monotonic_ms(), 0) / 1000
            self._timer = self._loop.call_later(delay_s, self._pump)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Write):
                transport = self._transports.get(effect.link)
                if transport is not None:
                    transport.writelines(effect.data)
            elif isinstance(effect, Open):
                self._opening[effect.link] = self._loop.create_task(self._open(effect))
            else:
                self._close_link(effect)

    def _close_link(self, effect: Close) -> None:
        opening = self._opening.pop(effect.link, None)
        if opening is not None:
            opening.cancel()
        transport = self._transports.pop(effect.link, None)
        if transport is not None:
            transport.abort()

    async def _open(self, effect: Open) -> None:
        try:
            await self._connect(effect)
        except OSError as error:
            self.engine.failed(effect.link, describe_failure(error), monotonic_ms())
        else:
            self.engine.opened(effect.link, monotonic_ms())
        finally:
            self._opening.pop(effect.link, None)
            self.pump_soon()

    async def _connect(self, effect: Open) -> None:
        """Try all addresses of the host; "localhost" has one per family."""
        found = await self._loop.getaddrinfo(effect.host, effect.port, type=socket.SOCK_STREAM)
        failure: OSError | None = None
        for _, _, _, _, address in found:
            try:
                transport, _ = await self._loop.create_connection(
                    lambda: _Link(self, effect.link),
                    str(address[0]),
                    effect.port,
                    ssl=self._tls,
                    server_hostname=None if self._tls is None else effect.host,
                )
            except OSError as error:
                failure = error
                if self._tls is not None and isinstance(error, ConnectionResetError):
                    failure = OSError("the connection was closed during the TLS handshake")
                continue
            set_socket_options(transport.get_extra_info("socket"))
            self._transports[effect.link] = transport
            return
        raise failure or OSError(f"{effect.host} has no address")

    def received(self, link: int, data: bytes) -> None:
        self.engine.received(link, data, monotonic_ms())
        self._pump()

    def lost(self, link: int, error: Exception | None) -> None:
        if self._transports.pop(link, None) is not None and not self.engine.closed:
            reason = "the broker closed the connection"
            if error is not None:
                reason = describe_failure(error)
            self.engine.lost(link, reason, monotonic_ms())
            self.pump_soon()

    async def close(self) -> None:
        """Close the engine, and wait until all sockets are closed."""
        if self.engine.closed:
            return
        opening = list(self._opening.values())
        self._carry_out(self.engine.close(monotonic_ms()))
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        # An aborted transport closes its socket in the next loop iteration.
        await asyncio.sleep(0)


class _Link(asyncio.Protocol):
    def __init__(self, driver: Driver, link: int) -> None:
        self._driver = driver
        self._link = link

    def data_received(self, data: bytes) -> None:
        self._driver.received(self._link, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._driver.lost(self._link, exc)
