"""A simulated broker: the production code with a simulated environment.

Only sockets, threads and the disk are replaced. The same hot handlers and the same dispatch process
the frames as in a real server.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any

from headrace.config.broker import BrokerConfig
from headrace.coordination.port import Store
from headrace.handlers.fetch import FetchHandler
from headrace.handlers.offset_commit import CommitHandler
from headrace.handlers.produce import ProduceHandler
from headrace.log.directory.partition_directories import parse_partition
from headrace.model.errors import ApiError
from headrace.node.broker import Broker, CannotStart
from headrace.replication.append_queue import AppendQueue
from headrace.replication.fetch_reader import FetchReader
from headrace.replication.leader_sessions import LeaderSessions
from headrace.replication.partition_table import PartitionTable
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.dispatch import handle_frame
from headrace.requests.topic_permissions import TopicPermissions
from headrace.runtime.exchange import Exchange, Peer
from headrace.server.plane import _skip_header
from headrace.testing.disk import SimulatedFiles
from headrace.wire.apis import FETCH, OFFSET_COMMIT, PRODUCE
from headrace.wire.cursor import MalformedRequest
from headrace.wire.header import read_header
from tests.simulation.ensemble import Ensemble, SimulatedStore
from tests.simulation.network import ProcessNetwork, Simulated, Wire
from tests.simulation.threads import SimulatedWorker
from tests.simulation.world import Process, World, WorldClock

CLIENT_PORT = 9092
DATA = "/data"
_FIRST_FREE_PORT = 40000


class SimulatedPeer(Peer):
    def __init__(self, front: "SimulatedFront", wire: Wire, listener: str) -> None:
        super().__init__(front.completed)
        self.front = front
        self.wire = wire
        self.listener = listener
        self.is_internal = listener == front.internal_listener
        self.backlog: deque[bytes] = deque()
        wire.received = self._received
        wire.closed = self._closed

    def fail(self, reason: str) -> None:
        self.wire.close()
        self._closed()

    def _received(self, frame: bytes) -> None:
        self.backlog.append(frame)
        self.front.pump(self)
        self.front.deliver()

    def _closed(self) -> None:
        if not self.closed:
            self.closed = True
            self.front.fetch.forget(self)
            self.front.sessions.forget(self)
            self.exchanges.clear()
            self.backlog.clear()


class _Port:
    def __init__(self, front: "SimulatedFront", listener: str) -> None:
        self.process = front.process
        self._front = front
        self._listener = listener

    def accepted(self, wire: Wire) -> None:
        if self._front.is_draining:
            wire.close()
            return
        self._front.peers.append(SimulatedPeer(self._front, wire, self._listener))


class SimulatedFront:
    """What server.Server and its plane do, over wires."""

    def __init__(
        self,
        environment: "SimulatedEnvironment",
        context: BrokerContext,
        partitions: PartitionTable,
        appends: AppendQueue,
        reader: FetchReader,
        sessions: LeaderSessions,
    ) -> None:
        process = self.process = environment.process
        config = context.config
        self.internal_listener = config.internal_listener
        self.peers: list[SimulatedPeer] = []
        self.is_draining = False
        self.is_started = False
        self.completed: list[Exchange] = []
        self._environment = environment
        self._context = context
        self.appends = appends
        permissions = TopicPermissions(context.authorizer, context.image)
        self.fetch = FetchHandler(
            partitions=partitions,
            appends=appends,
            reader=reader,
            call_later=process.loop.call_later,
            random_id=lambda: process.world.random.randint(1, 0x7FFFFFFF),
            response_bytes_max=config.get_int("fetch.max.bytes"),
            sessions_max=1000,
            permissions=permissions,
        )
        self.sessions = sessions
        self._produce = ProduceHandler(
            partitions, self.appends, environment.worker("check"), permissions
        )
        self._commits = CommitHandler(
            context.image, self.appends, context.groups, context.authorizer
        )
        self._keep_up()

    def reload_certificates(self) -> None:
        """Simulated listeners have no TLS."""

    def listen(self, name: str, host: str, port: int) -> int:
        network = self._environment.simulated
        if port == 0:
            port = _FIRST_FREE_PORT
            while (host, port) in network.servers:
                port += 1
        network.servers[(host, port)] = _Port(self, name)
        return port

    def start(self) -> None:
        """Respond to all that has arrived since the listeners are bound."""
        self.is_started = True
        for peer in self.peers:
            self.pump(peer)
        self.deliver()

    async def drain(self) -> None:
        self.is_draining = True
        self.fetch.expire_all()
        await asyncio.sleep(0.05)
        for peer in self.peers:
            peer.fail("draining")

    def _keep_up(self) -> None:
        self.appends.expire()
        self.process.loop.call_later(0.5, self._keep_up)

    def pump(self, peer: SimulatedPeer) -> None:
        if not self.is_started:
            return
        self.appends.update_time()
        while peer.backlog and not peer.muted and not peer.closed:
            self._request(peer, peer.backlog.popleft())

    def deliver(self) -> None:
        appends = self.appends
        while True:
            appends.flush()
            self.sessions.retry_woken()
            self.fetch.retry_woken()
            completed = self.completed.copy()
            self.completed.clear()
            if not completed:
                return
            for peer in dict.fromkeys(exchange.peer for exchange in completed):
                assert isinstance(peer, SimulatedPeer)
                self._send(peer)
                self.pump(peer)

    def _send(self, peer: SimulatedPeer) -> None:
        while peer.exchanges and peer.exchanges[0].pieces is not None:
            pieces: list[Any] = peer.exchanges.popleft().pieces or []
            answer = b"".join(
                piece if isinstance(piece, bytes) else piece.read() for piece in pieces
            )
            if answer:
                peer.wire.send(answer[4:])

    def _request(self, peer: SimulatedPeer, frame: bytes) -> None:
        header = read_header(frame)
        key, version = header.api_key, header.api_version
        if key == PRODUCE:
            body = _skip_header(frame, 8, len(frame), version >= 9)
            self._produce.handle(peer, header.correlation_id, version, frame, body, len(frame))
            return
        if peer.exchanges and self.appends.has_requests():
            self.appends.flush()
        if key == FETCH:
            body = _skip_header(frame, 8, len(frame), version >= 12)
            asked = peer, header.correlation_id, version, frame, body, len(frame)
            if not peer.is_internal or not self.sessions.handle(*asked):
                self.fetch.handle(*asked)
            return
        if key == OFFSET_COMMIT:
            body = _skip_header(frame, 8, len(frame), version >= 8)
            self._commits.handle(peer, header.correlation_id, version, frame, body, len(frame))
            return
        exchange = Exchange(peer, 0, 0)
        peer.exchanges.append(exchange)
        context = RequestContext(
            key,
            version,
            header.correlation_id,
            header.client_id,
            peer.wire.peer_name,
            peer.listener,
            peer.is_internal,
        )
        try:
            answer = handle_frame(self._context, context, frame, header.body_at)
        except MalformedRequest as error:
            peer.fail(str(error))
            return
        if isinstance(answer, bytes):
            self._answered(exchange, answer)
        else:
            peer.muted = True
            self.process.loop.create_task(self._finish(peer, exchange, answer))

    async def _finish(
        self, peer: SimulatedPeer, exchange: Exchange, answer: Awaitable[bytes]
    ) -> None:
        try:
            frame = await answer
        except ApiError as error:
            peer.fail(str(error))
            return
        peer.muted = False
        self._answered(exchange, frame)
        self.deliver()

    def _answered(self, exchange: Exchange, frame: bytes) -> None:
        exchange.respond([len(frame).to_bytes(4, "big"), frame])


class SimulatedEnvironment:
    def __init__(
        self,
        process: Process,
        network: Simulated,
        ensemble: Ensemble,
        files: SimulatedFiles,
        clock: WorldClock,
    ) -> None:
        self.process = process
        self.simulated = network
        self.clock = clock
        self.files = files
        self.network = ProcessNetwork(network, process)
        self.store: SimulatedStore | None = None
        self.former_session: int | None = None
        """The identity of the process before this one, if that process has provably ended."""
        self._ensemble = ensemble

    def entropy(self, size: int) -> bytes:
        return self.process.world.random.randbytes(size)

    def worker(self, name: str) -> Any:
        return SimulatedWorker(self.process, name)

    def make_server(
        self,
        context: BrokerContext,
        partitions: PartitionTable,
        appends: AppendQueue,
        reader: FetchReader,
        sessions: LeaderSessions | None,
    ) -> SimulatedFront:
        assert sessions is not None
        return SimulatedFront(self, context, partitions, appends, reader, sessions)

    async def open_store(self, _config: BrokerConfig, _directory: str) -> Store:
        while not self._ensemble.reaches(self.process.name):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        if self.former_session is not None:
            self._ensemble.process.at(0, self._ensemble.expire, self.former_session)
        self.store = SimulatedStore(self._ensemble, self.process)
        return self.store


class SimulatedBroker:
    """One broker with all its incarnations, on a machine with a disk and a wall clock."""

    def __init__(
        self,
        world: World,
        network: Simulated,
        ensemble: Ensemble,
        node_id: int,
        settings: dict[str, str],
    ) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"broker-{node_id}"
        self.host = f"10.0.0.{node_id}"
        self.files = SimulatedFiles(world.random.randrange(1 << 30))
        self.clock = WorldClock(world)
        self.backup: SimulatedFiles | None = None
        """An older copy of the data directory."""
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.environment: SimulatedEnvironment | None = None
        self.failed_start = ""
        """Why it did not start, although only files of a partition were unreadable."""
        self.ends_former_session = False
        """As a broker does whose data directory proves that its last process has ended."""
        self._stopping: Process | None = None
        self._network = network
        self._ensemble = ensemble
        self._settings = {
            "broker.id": str(node_id),
            "listeners": f"PLAINTEXT://{self.host}:{CLIENT_PORT}",
            "log.dirs": DATA,
            "zookeeper.connect": "zookeeper:2181",
            "log.cleaner.enable": "false",
            **settings,
        }

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.paused_until > self.world.now

    def start(self) -> None:
        assert not self.is_running
        former, process = self.environment, Process(self.world, self.name)
        self.process = process
        self.files.wall_ms = self.clock.wall_ms()
        self.environment = SimulatedEnvironment(
            process, self._network, self._ensemble, self.files, self.clock
        )
        if self.ends_former_session and former is not None and former.store is not None:
            self.environment.former_session = former.store.session_id
        broker = self.broker = Broker(BrokerConfig.load(self._settings), self.environment)
        process.spawn(self._run(process, broker))

    async def _run(self, process: Process, broker: Broker) -> None:
        try:
            await broker.start()
        except (CannotStart, OSError) as error:
            if isinstance(error, OSError) and error.filename in self.files.unreadable:
                self.failed_start = str(error)
            # A supervisor restarts the process one second later.
            self._end(process)
            self.files = self.files.killed()
            self.world.processes[0].at(self.world.now + 1.0, self.start_again)

    def start_again(self) -> None:
        if not self.is_running:
            self.start()

    def kill(self) -> None:
        """As kill -9 does: everything that was written stays in the page cache."""
        if self.process is not None and self.is_running:
            self._end(self.process)
            self.files = self.files.killed()

    def lose_power(self) -> None:
        if self.process is not None and self.is_running:
            self._end(self.process)
            self.lose_unsynced()

    def lose_unsynced(self) -> None:
        """The machine of a broker that has ended loses power."""
        assert not self.is_running
        self.files = self.files.power_lost(self.world.random.randrange(1 << 30))

    def stop(self) -> None:
        """As SIGTERM does: the broker drains, flushes and writes its clean-shutdown marker."""
        process, broker = self.process, self.broker
        if process is None or broker is None or not self.is_running or self._stopping is process:
            return
        self._stopping = process  # A second signal changes nothing.

        async def end() -> None:
            await broker.stop()
            self._end(process)
            self.files = self.files.killed()

        process.spawn(end())

    def pause(self, seconds: float) -> None:
        if self.process is not None:
            self.process.paused_until = self.world.now + seconds

    def is_compaction_idle(self) -> bool:
        maintenance = None if self.broker is None else self.broker._maintenance
        compaction = None if maintenance is None else maintenance.compaction
        return compaction is None or compaction._cleaning is None

    def configure(self, name: str, value: str) -> None:
        """Change a setting; the next start applies it."""
        self._settings[name] = value

    def make_unreadable(self, ending: str = "") -> str:
        """Make a random file of a partition unreadable; returns its path, if one exists."""
        paths = [
            f"{DATA}/{name}/{info.name}"
            for name in self.partition_directories()
            for info in self.files.list_directory(f"{DATA}/{name}")
            if info.name.endswith(ending)
        ]
        path = self.world.random.choice(paths) if paths else ""
        self.files.unreadable = {path}
        return path

    def wipe(self) -> None:
        """Replace the disk with an empty one; the broker must not run."""
        assert not self.is_running
        self._replace_disk(SimulatedFiles(self.world.random.randrange(1 << 30)))

    def remove_partitions(self, names: Sequence[str], ending: str = "") -> None:
        """Remove partition directories, or only files in them; the broker must not run."""
        assert not self.is_running
        self.files = files = self.files.killed()
        for name in names:
            for info in files.list_directory(f"{DATA}/{name}"):
                if info.name.endswith(ending):
                    files.remove(f"{DATA}/{name}/{info.name}")
            if not ending:
                files.remove_directory(f"{DATA}/{name}")
            files.sync_directory(f"{DATA}/{name}" if ending else DATA)

    def partition_directories(self) -> list[str]:
        infos = self.files.list_directory(DATA)
        names = [info.name for info in infos if info.is_directory]
        return [name for name in names if parse_partition(name) is not None]

    def back_up(self) -> None:
        """Copy the current state of the disk."""
        self.backup = self.files.copied()

    def restore(self) -> None:
        """Replace the disk with the older copy; the broker must not run."""
        assert not self.is_running
        assert self.backup is not None
        self._replace_disk(self.backup.copied())

    def _replace_disk(self, files: SimulatedFiles) -> None:
        files.boots = self.files.boots
        files.capacity = None
        self.files = files

    def heal_disk(self) -> None:
        self.files.capacity = None
        self.files.open_max = None
        self.files.fail_at.clear()
        self.files.unreadable.clear()

    def _end(self, process: Process) -> None:
        if process.is_alive:
            process.kill()
            self._network.died(process)
