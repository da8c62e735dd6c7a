"""The core of a client, without I/O: runs operations, producers and consumers.

Pure: a driver reports the events of links and the time, calls `poll` and carries out the returned
effects. It calls `poll` again after each event, and at `next_wakeup_ms` at the latest. The engine
never blocks, reads no clock, and does no I/O.

1. After `close`, all outcomes are done.
2. At most one metadata request is in flight. It completes only the RefreshMetadata steps that were
   waiting when it was sent.
"""

import heapq
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeVar

from headrace import __version__
from headrace.client.core.connection import Request
from headrace.client.core.errors import ClientClosed, ClientError
from headrace.client.core.lookups import metadata_fields
from headrace.client.core.machine_interfaces import Machine
from headrace.client.core.message_codec import decode_response
from headrace.client.core.metadata import Cluster, RefreshPolicy
from headrace.client.core.network import Effect, Network
from headrace.client.core.operation import (
    ANY,
    CONTROLLER,
    Operation,
    Outcome,
    Pause,
    Send,
    SendAll,
    Step,
    Wait,
)
from headrace.client.core.options import ClientOptions
from headrace.client.core.wait_reports import WaitReason
from headrace.wire.apis import METADATA
from headrace.wire.codec import encode_request_body

T = TypeVar("T")
Resume = Callable[[Any, ClientError | None], None]


class Engine:
    def __init__(self, options: ClientOptions, *, random: Random, now_ms: float) -> None:
        self.options = options
        self.random = random
        self.now_ms = now_ms
        self.cluster = Cluster()
        self.closed = False
        self._network = Network(options, random, __version__)
        self._policy = RefreshPolicy(options)
        self._machines: list[Machine] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._running: dict[Outcome[Any], Operation[Any]] = {}
        self._current: Outcome[Any] | None = None
        self._retries: dict[Outcome[Any], WaitReason] = {}
        """The last retriable error of each operation, and the time of its first one."""
        self._refresh_waiters: list[Resume] = []
        self._next_refresh_waiters: list[Resume] = []

    def bytes_to_read(self, link: int) -> int:
        """The number of bytes to read next; 0 for any number."""
        return self._network.bytes_to_read(link)

    # Events of links. The driver calls `poll` after each.

    def opened(self, link: int, now_ms: float) -> None:
        self.now_ms = now_ms
        self._network.opened(link, now_ms)

    def failed(self, link: int, reason: str, now_ms: float) -> None:
        self.now_ms = now_ms
        self._network.failed(link, reason, now_ms)

    def received(self, link: int, data: bytes, now_ms: float) -> None:
        self.now_ms = now_ms
        self._network.received(link, data, now_ms)

    def lost(self, link: int, reason: str, now_ms: float) -> None:
        self.now_ms = now_ms
        self._network.lost(link, reason, now_ms)

    def poll(self, now_ms: float) -> list[Effect]:
        """Do all work that is due at this time. The driver carries out the returned effects."""
        self.now_ms = now_ms
        self._run_timers(now_ms)
        for machine in list(self._machines):
            machine.poll(now_ms)
        if not self.closed and self._policy.due(now_ms):
            self._start_refresh()
        self._run_timers(now_ms)
        return self._network.poll(now_ms)

    def _run_timers(self, now_ms: float) -> None:
        while self._timers and self._timers[0][0] <= now_ms:
            heapq.heappop(self._timers)[2]()

    def next_wakeup_ms(self) -> float | None:
        """When to call `poll` next, if no event occurs earlier."""
        times = [self._network.next_wakeup_ms(), self._policy.next_ms()]
        times += [machine.next_wakeup_ms() for machine in self._machines]
        if self._timers:
            times.append(self._timers[0][0])
        return min((time for time in times if time is not None), default=None)

    def close(self, now_ms: float) -> list[Effect]:
        """Fail all operations and machines. The returned effects close the links."""
        self.now_ms = now_ms
        self.closed = True
        error = ClientClosed("the client is closed")
        for machine in list(self._machines):
            machine.close(error)
        self._machines.clear()
        running, self._running = self._running, {}
        for outcome, operation in running.items():
            operation.close()
            outcome.fail(error)
        self._network.close(now_ms)
        self._timers.clear()
        return self._network.poll(now_ms)

    # Operations.

    def start(self, operation: Operation[T]) -> Outcome[T]:
        """Start an operation. Its outcome is done now, or after a later call of the engine."""
        outcome: Outcome[T] = Outcome()
        if self.closed:
            operation.close()
            outcome.fail(ClientClosed("the client is closed"))
            return outcome
        self._running[outcome] = operation
        self._resume(outcome, operation, None, None)
        return outcome

    def cancel(self, outcome: Outcome[Any]) -> None:
        """Stop an operation whose outcome is no longer needed."""
        operation = self._running.pop(outcome, None)
        self._retries.pop(outcome, None)
        if operation is not None:
            operation.close()

    def _resume(
        self,
        outcome: Outcome[T],
        operation: Operation[T],
        value: Any,
        error: ClientError | None,
    ) -> None:
        if outcome not in self._running:
            return
        try:
            step = self._advance(outcome, operation, value, error)
        except StopIteration as stop:
            self._forget_operation(outcome)
            outcome.succeed(stop.value)
        except ClientError as failure:
            self._forget_operation(outcome)
            outcome.fail(failure)
        else:
            self._perform(step, lambda value, error: self._resume(outcome, operation, value, error))

    def _advance(
        self,
        outcome: Outcome[T],
        operation: Operation[T],
        value: Any,
        error: ClientError | None,
    ) -> Step:
        # An operation can start another operation while it runs.
        before, self._current = self._current, outcome
        try:
            return operation.send(value) if error is None else operation.throw(error)
        finally:
            self._current = before

    def _forget_operation(self, outcome: Outcome[Any]) -> None:
        del self._running[outcome]
        self._retries.pop(outcome, None)

    def note_retry(self, what: str, error: ClientError) -> None:
        """Record why the running operation retries; `retry_cause` returns it."""
        if self._current is not None:
            known = self._retries.get(self._current)
            since_ms = self.now_ms if known is None else known.since_ms
            self._retries[self._current] = WaitReason(since_ms, f"{what} failed: {error}")

    def retry_cause(self) -> WaitReason | None:
        """The operation or machine that has been retrying for longest, with its last error."""
        machines = (machine.retry_cause() for machine in self._machines)
        found = [*self._retries.values(), *(each for each in machines if each is not None)]
        return min(found, default=None)

    def oldest_wait(self) -> str:
        """The response or connection that the oldest request waits for; "" if none waits."""
        return self._network.oldest_wait()

    def _perform(self, step: Step, resume: Resume) -> None:
        if isinstance(step, Send):
            self._send_step(step, resume)
        elif isinstance(step, SendAll):
            self._send_all(step, resume)
        elif isinstance(step, Pause):
            self._after(step.duration_ms, lambda: resume(None, None))
        elif isinstance(step, Wait):
            self._wait(step, resume)
        else:
            for topic in step.topics:
                self._policy.use(topic, step.create)
            self._policy.request()
            self._next_refresh_waiters.append(resume)

    def _after(self, duration_ms: float, callback: Callable[[], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (self.now_ms + duration_ms, self._timer_count, callback))

    def _wait(self, step: Wait, resume: Resume) -> None:
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                resume(None, None)

        # Resume from a timer: the code that completes the outcome might not have finished a change.
        step.outcome.on_done(lambda _: self._after(0, end))
        if step.timeout_ms is not None:
            self._after(max(step.timeout_ms, 0), end)

    def _send_all(self, step: SendAll, resume: Resume) -> None:
        results: list[Any] = [None] * len(step.requests)
        unfinished = len(step.requests)
        if not unfinished:
            # Resume from a timer: a generator cannot be resumed while it runs.
            self._after(0, lambda: resume(results, None))
            return

        def set_result(index: int) -> Resume:
            def take(value: Any, error: ClientError | None) -> None:
                nonlocal unfinished
                results[index] = value if error is None else error
                unfinished -= 1
                if not unfinished:
                    resume(results, None)

            return take

        for index, request in enumerate(step.requests):
            self._send_step(request, set_result(index))

    def _send_step(self, step: Send, resume: Resume) -> None:
        node = step.node
        if node == CONTROLLER:
            node = self.cluster.controller_id
            if node not in self.cluster.nodes:
                node = ANY
        api_key, fields = step.api_key, step.fields
        timeout_ms = step.timeout_ms
        if timeout_ms is None:
            timeout_ms = self.options.request_timeout_ms
        request = Request(
            api_key,
            lambda version: [encode_request_body(api_key, version, fields)],
            lambda version, data, at, end: decode_response(api_key, version, data, at, end),
            lambda response, error, _now_ms: resume(response, error),
            self.now_ms + timeout_ms,
            step.version_max,
        )
        # Send from a timer: an immediate error would resume a generator that is still running.
        if node == ANY:
            self._after(0, lambda: self._network.send_to_any(request, self.now_ms))
        else:
            self._after(0, lambda: self._network.send(node, request, self.now_ms, step.lane))

    # For machines.

    def attach(self, machine: Machine) -> None:
        self._machines.append(machine)

    def detach(self, machine: Machine) -> None:
        if machine in self._machines:
            self._machines.remove(machine)

    def send(self, node: int, request: Request, lane: int = 0) -> None:
        """Send a request of a machine to a broker."""
        self._network.send(node, request, self.now_ms, lane)

    def open_lane(self) -> int:
        """The number of a new lane: separate connections for a machine."""
        return self._network.open_lane()

    def close_lane(self, lane: int) -> None:
        self._network.close_lane(lane, self.now_ms)

    def use_topic(self, topic: str, create: bool) -> None:
        self._policy.use(topic, create)

    def forget_topic(self, topic: str) -> None:
        self._policy.forget(topic)

    def request_metadata(self) -> None:
        self._policy.request()

    def unreachable(self) -> ClientError | None:
        """The error if no broker responds; None if one does."""
        return self._network.unreachable() if self._network.bootstrap_is_exhausted() else None

    # Metadata.

    def _start_refresh(self) -> None:
        self._policy.started(self.now_ms)
        self._refresh_waiters, self._next_refresh_waiters = self._next_refresh_waiters, []
        topics = dict(self._policy.topics)
        # allow_auto_topic_creation applies to all topics of a request. So topics that may be
        # created are sent in a separate request.
        create = all(topics.values()) and bool(topics)
        if not create and any(topics.values()):
            missing = [
                name
                for name, may_create in topics.items()
                if may_create and name not in self.cluster.topics
            ]
            if missing:
                topics, create = dict.fromkeys(missing, True), True
        fields = metadata_fields(topics, create)
        step = Send(ANY, METADATA, fields)
        self._send_step(step, lambda response, error: self._refreshed(topics, response, error))

    def _refreshed(
        self, requested: Mapping[str, bool], response: Any, error: ClientError | None
    ) -> None:
        waiters, self._refresh_waiters = self._refresh_waiters, []
        complete = False
        if error is None:
            self.cluster.apply(response, requested)
            self._network.set_nodes(self.cluster.nodes.values(), self.now_ms)
            complete = not self.cluster.topic_errors
        self._policy.finished(self.now_ms, complete=complete)
        again = len(requested) < len(self._policy.topics) or bool(self._next_refresh_waiters)
        # A producer or consumer might wait for this before it retries.
        again |= error is not None and error.retriable and bool(self._machines)
        if again:
            self._policy.request()
        for resume in waiters:
            resume(None, error)
