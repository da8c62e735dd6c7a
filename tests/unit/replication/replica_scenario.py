"""Brokers without sockets: real logs, partitions, leader sessions and fetchers.

Time advances and messages are sent only when a test requests it.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import cast
from uuid import UUID

from headrace.config.topic import TopicConfig
from headrace.log.file import FileSlice, OpenSegments
from headrace.log.log import Log
from headrace.log.recovery.opening import recover
from headrace.log.state import LogSettings
from headrace.model.topics import PartitionState, TopicPartition
from headrace.replication.append_queue import AppendQueue
from headrace.replication.fetch_reader import FetchReader
from headrace.replication.fetcher_machine import FetcherMachine
from headrace.replication.leader_sessions import LeaderSessions
from headrace.replication.partition import Partition
from headrace.replication.partition_table import PartitionTable
from headrace.replication.throttle import Throttle
from headrace.runtime.exchange import Peer
from headrace.runtime.worker import Worker
from headrace.testing.disk import SimulatedFiles
from headrace.wire.header import read_header
from headrace.wire.replica_fetch import VERSION, ReplicaFetchRequest
from tests.storage.log_scenario import ManualClock, batch, topic_config

TOPIC = "events"
TOPIC_ID = UUID(int=7)
BACKOFF_MS_MAX = 1000


def epoch_of(node_id: int) -> int:
    """The epoch under which each broker is registered."""
    return 100 + node_id


class ManualWorker:
    """Runs its jobs when a test requests it."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], object], Callable[[object, None], None]]] = []

    def submit(
        self, job: Callable[[], object], done: Callable[[object, BaseException | None], None]
    ) -> None:
        self.jobs.append((job, done))

    def work(self) -> None:
        while self.jobs:
            job, done = self.jobs.pop(0)
            done(job(), None)


class ManualTimer:
    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Node:
    """One broker: a disk, partitions, and the handler that its followers ask."""

    def __init__(self, node_id: int, clock: ManualClock, responds_to_commits: bool = False) -> None:
        self.node_id = node_id
        self.clock = clock
        self.files = SimulatedFiles()
        self.worker = ManualWorker()
        self.is_busy = False
        """Whether its worker waits for a request of the test."""
        worker = cast("Worker", self.worker)
        self.table = PartitionTable()
        self.registered_epoch: Callable[[int], int] = epoch_of
        self.is_stale = False
        """Whether the broker has no session."""
        self.deliveries: list[Callable[[], None]] = []
        """Called after each flush."""
        self.appends = AppendQueue(clock, worker, self._deliver, lambda: self.is_stale)
        self.considered: list[Partition] = []
        self.reader = FetchReader(self.appends, worker)
        self.timers: list[ManualTimer] = []
        self.handler = LeaderSessions(
            partitions=self.table,
            appends=self.appends,
            reader=self.reader,
            call_later=self._call_later,
            monotonic=clock.monotonic,
            registered_epoch=lambda node: self.registered_epoch(node),
            check_isr=self.considered.append,
            throttle=Throttle(),
            responds_to_commits=responds_to_commits,
        )

    def add(
        self, index: int = 0, config: TopicConfig | None = None, log: Log | None = None
    ) -> Partition:
        if log is None:
            log = open_partition(self.files, index, config)
        partition = Partition(TOPIC, index, TOPIC_ID, log, self.node_id, 0, 1 << 20)
        self.table.add(partition)
        return partition

    def partition(self, index: int = 0) -> Partition:
        found = self.table.get(TOPIC, index)
        assert found is not None
        return found

    def append(self, *values: str, index: int = 0) -> None:
        """Write one batch as the partition's leader, and wake its followers."""
        partition = self.partition(index)
        self.appends.update_time()
        partition.stage(batch(*values), self.clock.wall_ms())
        self.appends.mark_dirty(partition)
        self._deliver()

    def expire(self, until: float = inf) -> None:
        """Let the time of every long poll be over, or of those that end until then."""
        due = [timer for timer in self.timers if timer.due <= until]
        self.timers = [timer for timer in self.timers if timer.due > until]
        for timer in due:
            if not timer.is_cancelled:
                timer.call()

    def _call_later(self, delay: float, call: Callable[..., None], exchange: object) -> ManualTimer:
        timer = ManualTimer(self.clock.monotonic() + delay, lambda: call(exchange))
        self.timers.append(timer)
        return timer

    def _deliver(self) -> None:
        self.appends.flush()
        self.handler.retry_woken()
        for deliver in self.deliveries:
            deliver()


class Wire:
    """A connection between a follower's machine and a leader, carried by hand."""

    def __init__(self, follower: Node, leader: Node, machine: FetcherMachine | None = None) -> None:
        self.follower = follower
        self.leader = leader
        self.machine = machine or new_machine(follower.node_id)
        self.peer = Peer()
        self.requests: list[bytes] = []
        for partition in follower.table:
            partition.report_start_to(self.machine.report_start)

    def now_ms(self) -> int:
        return int(self.follower.clock.monotonic() * 1000)

    def ask(self) -> bool:
        """Send the next request, if the machine has one."""
        frame = self.machine.next_request(epoch_of(self.follower.node_id), self.now_ms())
        if frame is None:
            return False
        self.requests.append(frame)
        header = read_header(frame)
        self.leader.appends.update_time()
        self.leader.handler.handle(self.peer, 0, VERSION, frame, header.body_at, len(frame))
        self.leader._deliver()
        return True

    def receive(self) -> bool:
        """Process the oldest response, if any."""
        frame = self.answer()
        if frame is None:
            return False
        self.machine.apply_response(frame, self.follower.clock.wall_ms(), self.now_ms())
        self.apply_state()
        return True

    def answer(self) -> bytes | None:
        """The oldest response without its length prefix, if any."""
        if not self.peer.exchanges or self.peer.exchanges[0].pieces is None:
            return None
        pieces = self.peer.exchanges.popleft().pieces
        assert pieces is not None
        data = b"".join(
            piece.read() if isinstance(piece, FileSlice) else cast("bytes", piece)
            for piece in pieces
        )
        return data[4:]

    def apply_state(self) -> None:
        """Start the logs' work, and come back when it is done."""
        machine = self.machine
        written, machine.written = machine.written, []
        held, machine.awaiting_job = machine.awaiting_job, []
        for partition in written:
            self.follower.appends.follower_appended(partition)
        for partition in held:
            partition.listeners.when_job_done(partial(machine.resume, partition))

    def run(self) -> int:
        """Fetch until the leader returns no more records. Returns the number of requests."""
        rounds = 0
        while self.ask() | self.receive() | self._work():
            rounds += 1
            assert rounds < 200
        return rounds

    def _work(self) -> bool:
        busy = [node for node in (self.follower, self.leader) if not node.is_busy]
        has_work = any(node.worker.jobs for node in busy)
        for node in busy:
            node.worker.work()
        self.apply_state()
        return has_work

    def catch_up(self) -> None:
        """Also end the remaining long poll, so that the follower sends another fetch."""
        self.run()
        self.leader.expire()
        self.receive()

    def cut(self) -> None:
        self.leader.handler.forget(self.peer)
        self.peer = Peer()
        self.machine.link_closed()


def new_machine(
    node_id: int, partition_bytes_max: int = 1 << 20, throttle: Throttle | None = None
) -> FetcherMachine:
    request = ReplicaFetchRequest(
        f"broker-{node_id}", node_id, 500, 1, 10 << 20, partition_bytes_max
    )
    return FetcherMachine(request, BACKOFF_MS_MAX, throttle or Throttle())


def open_partition(files: SimulatedFiles, index: int = 0, config: TopicConfig | None = None) -> Log:
    path = f"/{TOPIC}-{index}"
    if not files.exists(path):
        files.make_directory(path)
        files.sync_directory("/")
    config = config or topic_config()
    settings = LogSettings()
    cache = OpenSegments()
    state = recover(files, cache, path, config, settings, 0, None)
    partition = TopicPartition(TOPIC, index)
    return Log(files, cache, path, partition, TOPIC_ID, config, state, settings)


def state(
    leader: int,
    leader_epoch: int,
    isr: tuple[int, ...] = (1, 2, 3),
    partition_epoch: int | None = None,
) -> PartitionState:
    return PartitionState(
        leader,
        leader_epoch,
        (1, 2, 3),
        isr,
        leader_epoch if partition_epoch is None else partition_epoch,
        tuple(epoch_of(member) for member in isr),
    )


def elect(
    leader: Node, epoch: int, *followers: Node, index: int = 0, isr: tuple[int, ...] = (1, 2, 3)
) -> None:
    """Notify all brokers of the new leader."""
    partition = leader.partition(index)
    if partition.is_leader:
        partition.retire()
    now_ms = int(leader.clock.monotonic() * 1000)
    partition.become_leader(state(leader.node_id, epoch, isr), epoch_of(leader.node_id), now_ms)
    for follower in followers:
        follower.partition(index).follow(state(leader.node_id, epoch, isr))


def log_bytes(log: Log) -> bytes:
    """The bytes of all files of the log, from its first segment."""
    return b"".join(
        segment.open().files.read_file(segment.stem + ".log") for segment in log.segments.all
    )
