"""A simulated ZooKeeper ensemble: one tree, and sessions that expire without heartbeats.

Owns the tree, the sessions and delayed messages: responses, watch events and session expiries.

1. Requests of a session are executed in order, and its responses and events arrive in order.
2. A session without a heartbeat for its timeout expires, and its ephemeral nodes are deleted. The
   server knows this before the client.
3. If the connection breaks, a request in flight might have been executed: its outcome is unknown.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.coordination.port import (
    ANY_VERSION,
    ConnectionLost,
    Create,
    Delete,
    EventType,
    MultiFailed,
    Op,
    SessionExpired,
    SessionListener,
    SessionState,
    Set,
    Stat,
    StoreError,
    UnknownOutcome,
    Watch,
    WatchEvent,
    check_ops,
)
from headrace.coordination.tree import Tree
from tests.simulation.network import Simulated
from tests.simulation.world import Process, World

NAME = "zookeeper"


class _Session:
    def __init__(self, session_id: int, now: float) -> None:
        self.session_id = session_id
        self.heard_at = now
        self.data_watches: dict[str, dict[Watch, None]] = {}
        self.child_watches: dict[str, dict[Watch, None]] = {}
        self.store: SimulatedStore | None = None


class Ensemble:
    def __init__(self, world: World, network: Simulated, session_timeout_s: float) -> None:
        self.world = world
        self.network = network
        self.session_timeout_s = session_timeout_s
        self.process = Process(world, NAME)
        self.tree = Tree()
        self.zxid = 0
        self.sessions: dict[int, _Session] = {}
        self.is_down = False
        self.history: list[tuple[float, Op]] = []
        """Every write that was carried out, for the checkers."""
        self._created_ms: dict[str, int] = {}
        self.process.at(0, self._tick)

    def reaches(self, name: str) -> bool:
        """Whether a process and the ensemble exchange messages, in both directions."""
        return self.passes(name, NAME) and self.passes(NAME, name)

    def passes(self, source: str, target: str) -> bool:
        return not (self.is_down or self.network.is_cut(source, target))

    def _tick(self) -> None:
        if not self.is_down:
            for session in list(self.sessions.values()):
                if self.world.now - session.heard_at > self.session_timeout_s:
                    self.expire(session.session_id)
        else:
            for session in self.sessions.values():
                # Sessions do not expire while the ensemble has no leader.
                session.heard_at = self.world.now
        self.process.at(self.world.now + self.session_timeout_s / 10, self._tick)

    def expire(self, session_id: int) -> None:
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self.commit(session_id, [Delete(path) for path in self.tree.owned_by(session_id)])

    def open_session(self) -> _Session:
        self.zxid += 1
        session = self.sessions[self.zxid] = _Session(self.zxid, self.world.now)
        return session

    def commit(self, session_id: int, ops: Sequence[Op]) -> list[Stat | None]:
        commit = self.tree.commit(ops, session_id, self.zxid + 1)
        if commit.changes:
            self.zxid += 1
        self.history += [(self.world.now, op) for op in ops]
        now_ms = self.world.wall_ms()
        self._created_ms.update((op.path, now_ms) for op in ops if isinstance(op, Create))
        for event in commit.events:
            for session in self.sessions.values():
                self._fire(session, event)
        return commit.results

    def stat_of(self, path: str) -> Stat | None:
        node = self.tree.nodes.get(path)
        if node is None:
            return None
        return node.stat._replace(created_ms=self._created_ms.get(path, 0))

    def _fire(self, session: _Session, event: WatchEvent) -> None:
        watches: dict[Watch, None] = {}
        if event.type is not EventType.CHILDREN:
            watches |= session.data_watches.pop(event.path, {})
        if event.type in (EventType.CHILDREN, EventType.DELETED):
            watches |= session.child_watches.pop(event.path, {})
        if session.store is not None:
            for watch in watches:
                session.store.hear(session, partial(watch, event))


class _Pipe:
    """One direction of a connection. Messages arrive in order. During a cut, they are delayed."""

    def __init__(self, ensemble: Ensemble, source: Process, target: Process) -> None:
        self._ensemble = ensemble
        self._source = source
        self._target = target
        self._under_way: deque[tuple[float, Callable[[], object]]] = deque()
        self._is_pumping = False

    def say(self, arrive: Callable[[], object]) -> None:
        ensemble = self._ensemble
        self._under_way.append((ensemble.world.now + ensemble.network.delay(), arrive))
        self._pump_later()

    def clear(self) -> None:
        self._under_way.clear()

    def _pump_later(self) -> None:
        if self._under_way and not self._is_pumping and self._target.is_alive:
            self._is_pumping = True
            self._target.at(self._under_way[0][0], self._pump)

    def _pump(self) -> None:
        self._is_pumping = False
        now = self._ensemble.world.now
        if not self._ensemble.passes(self._source.name, self._target.name):
            self._is_pumping = True
            self._target.at(now + 0.02, self._pump)
            return
        while self._under_way and self._under_way[0][0] <= now:
            self._under_way.popleft()[1]()
        self._pump_later()


class SimulatedStore:
    """The Store port, as one process has it."""

    def __init__(self, ensemble: Ensemble, process: Process) -> None:
        self._ensemble = ensemble
        self._process = process
        self._loop = process.loop
        self._session = ensemble.open_session()
        self._session.store = self
        self._state = SessionState.CONNECTED
        self._listeners: list[SessionListener] = []
        self._waiting: dict[asyncio.Future[Any], bool] = {}
        self._out = _Pipe(ensemble, process, ensemble.process)
        self._in = _Pipe(ensemble, ensemble.process, process)
        self._connected_at = ensemble.world.now
        self._generation = 0
        self._is_closed = False
        self._loop.call_later(self._beat_s, self._beat)

    @property
    def _beat_s(self) -> float:
        return self._ensemble.session_timeout_s / 4

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def session_timeout_ms(self) -> int:
        return int(self._ensemble.session_timeout_s * 1000)

    def on_session(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    # The connection.

    def _beat(self) -> None:
        """Send a heartbeat, notice missing responses, and reconnect."""
        ensemble, now = self._ensemble, self._ensemble.world.now
        if self._is_closed:
            return
        self._loop.call_later(self._beat_s, self._beat)
        if ensemble.reaches(self._process.name):
            self._connected_at = now
            known = ensemble.sessions.get(self.session_id)
            if known is None:
                self._expired()
                return
            known.heard_at = now
            if self._state is SessionState.SUSPENDED:
                self._change(SessionState.CONNECTED)
            return
        if now - self._connected_at >= ensemble.session_timeout_s * 0.6:
            self.suspend()
        elif ensemble.passes(self._process.name, NAME) and self.session_id in ensemble.sessions:
            # Only responses are delayed: the ensemble receives heartbeats.
            ensemble.sessions[self.session_id].heard_at = now

    def suspend(self) -> None:
        """The connection broke: requests in flight have an unknown outcome, watches are lost."""
        if self._state is SessionState.CONNECTED:
            self._break()
            self._session.data_watches.clear()
            self._session.child_watches.clear()
            self._change(SessionState.SUSPENDED)
            self._fail_waiting()

    def _expired(self) -> None:
        if self._state is SessionState.CONNECTED:
            self._break()
            self._fail_waiting()
        self._change(SessionState.LOST)
        self._session = self._ensemble.open_session()
        self._session.store = self
        self._change(SessionState.CONNECTED)

    def _break(self) -> None:
        self._generation += 1
        self._in.clear()
        if self._ensemble.world.random.random() < 0.5:
            # Requests in flight to the server are either lost or still arrive.
            self._out.clear()

    def _fail_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer, writes in waiting.items():
            if not answer.done():
                error = UnknownOutcome if writes else ConnectionLost
                answer.set_exception(error("the connection broke"))

    def _change(self, state: SessionState) -> None:
        self._state = state
        for listener in list(self._listeners):
            listener(state)

    def hear(self, session: _Session, tell: Callable[[], object]) -> None:
        """Send a message of the ensemble to the client, after all earlier ones."""
        generation = self._generation

        def arrive() -> None:
            if session is self._session and generation == self._generation:
                tell()

        self._in.say(arrive)

    async def _ask(self, carry_out: Callable[[_Session], Any], *, writes: bool) -> Any:
        if self._state is SessionState.SUSPENDED:
            raise ConnectionLost("suspended")
        if self._state is SessionState.LOST or self._is_closed:
            raise SessionExpired("over")
        ensemble, session = self._ensemble, self._session
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[answer] = writes

        def done(result: Any, error: Exception | None) -> None:
            self._waiting.pop(answer, None)
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        def arrive() -> None:
            if session.session_id not in ensemble.sessions:
                error: Exception = (
                    UnknownOutcome("expired") if writes else ConnectionLost("expired")
                )
                self.hear(session, lambda: done(None, error))
                return
            result, refusal = None, None
            try:
                result = carry_out(session)
            except StoreError as failed:
                refusal = failed
            self.hear(session, lambda: done(result, refusal))

        self._out.say(arrive)
        return await answer

    # The port.

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        def carry_out(session: _Session) -> tuple[bytes, Stat]:
            node = self._ensemble.tree.node(path)
            _arm(session.data_watches, path, watch)
            return node.data, node.stat

        found: tuple[bytes, Stat] = await self._ask(carry_out, writes=False)
        return found

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        def carry_out(session: _Session) -> Stat | None:
            _arm(session.data_watches, path, watch)
            return self._ensemble.stat_of(path)

        stat: Stat | None = await self._ask(carry_out, writes=False)
        return stat

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def carry_out(session: _Session) -> list[str]:
            names = self._ensemble.tree.children(path)
            _arm(session.child_watches, path, watch)
            return names

        names: list[str] = await self._ask(carry_out, writes=False)
        return names

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Stat:
        await self._one(Create(path, data, ephemeral))
        stat = await self.exists(path)
        assert stat is not None
        return stat

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        stat = (await self._one(Set(path, data, version)))[0]
        assert stat is not None
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._one(Delete(path, version))

    async def _one(self, op: Op) -> list[Stat | None]:
        try:
            return await self.multi([op])
        except MultiFailed as failed:
            raise failed.error from None

    async def multi(self, ops: Sequence[Op]) -> list[Stat | None]:
        check_ops(ops)
        results: list[Stat | None] = await self._ask(
            lambda session: self._ensemble.commit(session.session_id, ops), writes=True
        )
        return results

    async def sync(self) -> None:
        await self._ask(lambda _: None, writes=False)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._ensemble.reaches(self._process.name):
                self._ensemble.process.at(0, self._ensemble.expire, self.session_id)
            self._fail_waiting()


def _arm(table: dict[str, dict[Watch, None]], path: str, watch: Watch | None) -> None:
    if watch is not None:
        table.setdefault(path, {})[watch] = None
