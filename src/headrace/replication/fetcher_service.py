"""Fetches from the leaders of partitions that this broker follows: one link per session.  # HOT

Connects `FetcherMachine`, which makes the decisions, to links, timers and logs. Runs on the loop
thread. The node calls `follow` and `unfollow` when the image of the cluster changes.

1. A partition is in at most one session: with the leader in the last known partition state.
2. A broken link reconnects immediately, then with exponential backoff, always to the same broker.
3. The next request is sent before the jobs of the logs start, because leaders wait for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple
from zlib import crc32

from headrace.config.broker import BrokerConfig
from headrace.env.clock import Clock
from headrace.model.backoff import backoff
from headrace.model.cluster import ClusterImage, Endpoint
from headrace.replication.fetch_target import NEVER
from headrace.replication.fetcher_machine import FetcherMachine
from headrace.replication.partition import Partition
from headrace.replication.throttle import Throttle
from headrace.runtime.link import Link, LinkBroken, Network
from headrace.wire.cursor import MalformedRequest
from headrace.wire.replica_fetch import ReplicaFetchRequest

_CONNECT_BACKOFF_MS_MIN: Final = 50
_CONNECT_TIMEOUT_S: Final = 3.0
_LOG = logging.getLogger(__name__)


class FetcherSettings(NamedTuple):
    wait_ms_max: int = 500
    bytes_min: int = 1
    partition_bytes_max: int = 1024 * 1024
    response_bytes_max: int = 10 * 1024 * 1024
    backoff_ms: int = 1000
    response_ms_max: int = 30_000
    sessions: int = 1
    """The number of sessions per leader."""

    @classmethod
    def of(cls, config: BrokerConfig) -> "FetcherSettings":
        wait_ms_max = config.get_int("replica.fetch.wait.max.ms")
        return cls(
            wait_ms_max,
            config.get_int("replica.fetch.min.bytes"),
            config.get_int("replica.fetch.max.bytes"),
            config.get_int("replica.fetch.response.max.bytes"),
            config.get_int("replica.fetch.backoff.ms"),
            wait_ms_max + config.get_int("replica.socket.timeout.ms"),
            config.get_int("num.replica.fetchers"),
        )


LogIn = Callable[[Link, Endpoint], Awaitable[None]]


async def _skip_login(_link: Link, _endpoint: Endpoint) -> None:
    pass


class ReplicaFetchers:
    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        node_id: int,
        broker_epoch: Callable[[], int],
        image: ClusterImage,
        listener: str,
        replicated: Callable[[Partition], None],
        settings: FetcherSettings,
        throttle: Throttle,
        log_in: LogIn = _skip_login,
    ) -> None:
        """`listener` is the name of the listener for connections between brokers.

        `replicated` is called with each partition whose log has changed or needs a job.
        `log_in` authenticates this broker on a new link.
        """
        self.log_in = log_in
        self.network = network
        self.clock = clock
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        self.replicated = replicated
        self.settings = settings
        self.throttle = throttle
        self._image = image
        self._listener = listener
        self._sessions: dict[tuple[int, int], _Session] = {}
        self._session_of: dict[Partition, _Session] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch from the current leader of the partition, if it has one."""
        session = self._session_for(partition)
        before = self._session_of.pop(partition, None)
        if before is not None and before is not session:
            before.machine.unfollow(partition)
            before.request_soon()
        if session is not None:
            self._session_of[partition] = session
            partition.report_start_to(self._report_start)
            session.machine.follow(partition)
            session.request_soon()

    def unfollow(self, partition: Partition) -> None:
        session = self._session_of.pop(partition, None)
        if session is not None:
            session.machine.unfollow(partition)
            session.request_soon()

    def repair(self, partition: Partition) -> None:
        """Fetch the damaged records again, from `Partition.damaged_from`."""
        session = self._session_of.get(partition)
        if session is not None:
            session.machine.repair(partition)
            session.request_soon()

    def _report_start(self, partition: Partition) -> None:
        """Report the new log start offset of a partition to its leader."""
        session = self._session_of.get(partition)
        if session is not None:
            session.machine.report_start(partition)
            session.request_soon()

    def brokers_changed(self) -> None:
        """The registered brokers have changed: an unreachable leader might be reachable now."""
        for session in self._sessions.values():
            session.reconnect_now()

    def apply_settings(self, settings: FetcherSettings) -> None:
        """Apply new settings: every session is replaced."""
        followed = list(self._session_of)
        self.stop()
        self.settings = settings
        for partition in followed:
            self.follow(partition)

    def stop(self) -> None:
        """End all sessions."""
        for session in self._sessions.values():
            session.stop()
        self._sessions = {}
        self._session_of = {}

    def endpoint_of(self, node_id: int) -> Endpoint | None:
        broker = self._image.brokers.get(node_id)
        for endpoint in broker.endpoints if broker is not None else ():
            if endpoint.listener == self._listener:
                return endpoint
        return None

    def _session_for(self, partition: Partition) -> "_Session | None":
        leader = int(partition.leader_id)
        # With a failed log, a fetch could acknowledge records that are lost at the next restart.
        if leader < 0 or leader == self.node_id or partition.log.is_offline:
            return None
        number = 0
        if self.settings.sessions > 1:
            number = crc32(partition.topic.encode(), int(partition.index)) % self.settings.sessions
        session = self._sessions.get((leader, number))
        if session is None:
            session = self._sessions[(leader, number)] = _Session(self, leader)
        return session


class _Session:
    """One fetch session: its machine, and a link while the machine has partitions to fetch."""

    def __init__(self, fetchers: ReplicaFetchers, leader_id: int) -> None:
        settings = fetchers.settings
        self.machine = FetcherMachine(
            ReplicaFetchRequest(
                f"broker-{fetchers.node_id}",
                fetchers.node_id,
                settings.wait_ms_max,
                settings.bytes_min,
                settings.response_bytes_max,
                settings.partition_bytes_max,
            ),
            settings.backoff_ms,
            fetchers.throttle,
        )
        self._fetchers = fetchers
        self._clock = fetchers.clock
        self._leader_id = leader_id
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._on_response: Callable[[bytes | None], None] = _ignore
        self._connecting: asyncio.Task[None] | None = None
        self._reconnect_timer: asyncio.TimerHandle | None = None
        self._pause_timer: asyncio.TimerHandle | None = None
        self._response_timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._response_ms = 0
        self._is_request_due = False
        self._is_stopped = False

    def request_soon(self) -> None:
        """Send the next request at the end of this loop iteration."""
        if not self._is_request_due:
            self._is_request_due = True
            self._loop.call_soon(self._send_request)

    def reconnect_now(self) -> None:
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
            self._reconnect_timer = None
        if self._link is None:
            self._failures = 0
            self.request_soon()

    def stop(self) -> None:
        self._is_stopped = True
        for timer in (self._reconnect_timer, self._pause_timer, self._response_timer):
            if timer is not None:
                timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        self._close_link()

    # Requests and responses.

    def _send_request(self) -> None:
        self._is_request_due = False
        if self._is_stopped:
            return
        if self.machine.count == 0:
            self._close_link()
            return
        link = self._link
        if link is None:
            self._connect()
            return
        now_ms = self._now_ms()
        frame = self.machine.next_request(self._fetchers.broker_epoch(), now_ms)
        if frame is not None:
            link.send(frame, self._on_response)
        self._set_pause_timer(now_ms)

    def _response_received(self, link: Link, frame: bytes | None) -> None:
        if link is not self._link:
            return
        if frame is None:
            self._link_failed()
            return
        now_ms = self._response_ms = self._now_ms()
        try:
            self.machine.apply_response(frame, self._clock.wall_ms(), now_ms)
        except MalformedRequest as error:
            _LOG.warning("fetch response not valid: broker=%d error=%s", self._leader_id, error)
            self._link_failed()
            return
        self._failures = 0
        self._send_request()
        self._start_work()

    def _start_work(self) -> None:
        machine = self.machine
        written, awaiting_job = machine.written, machine.awaiting_job
        machine.written, machine.awaiting_job = [], []
        for partition in written:
            self._fetchers.replicated(partition)
        for partition in awaiting_job:
            partition.listeners.when_job_done(partial(self._resume, partition))

    def _resume(self, partition: Partition) -> None:
        self.machine.resume(partition)
        self._start_work()
        self.request_soon()

    def _set_pause_timer(self, now_ms: int) -> None:
        """Set the timer for the next partition whose pause ends."""
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
        due_ms = int(self.machine.next_due_ms())
        if due_ms != NEVER:
            self._pause_timer = self._loop.call_later(
                max(due_ms - now_ms, 0) / 1000, self.request_soon
            )

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # The link.

    def _connect(self) -> None:
        endpoint = self._fetchers.endpoint_of(self._leader_id)
        if endpoint is None or self._connecting is not None or self._reconnect_timer is not None:
            return
        self._connecting = self._loop.create_task(self._open_link(endpoint))

    async def _open_link(self, endpoint: Endpoint) -> None:
        network = self._fetchers.network
        try:
            link = await network.connect(endpoint.host, endpoint.port, _CONNECT_TIMEOUT_S)
            await self._fetchers.log_in(link, endpoint)
        except (LinkBroken, OSError) as error:
            self._connecting = None
            if self._failures == 0:
                _LOG.info("leader not reachable: broker=%d error=%s", self._leader_id, error)
            self._connect_later()
            return
        self._connecting = None
        if self._is_stopped:
            link.close()
            return
        self._link = link
        self._on_response = partial(self._response_received, link)
        self._response_ms = self._now_ms()
        link.on_close(partial(self._response_received, link, None))
        self._check_response_time()
        self._send_request()

    def _connect_later(self) -> None:
        self._failures += 1
        backoff_ms_max = max(self._fetchers.settings.backoff_ms, 1)
        wait_ms = backoff(_CONNECT_BACKOFF_MS_MIN, backoff_ms_max, self._failures)
        self._reconnect_timer = self._loop.call_later(wait_ms / 1000, self._connect_again)

    def _connect_again(self) -> None:
        self._reconnect_timer = None
        self._send_request()

    def _check_response_time(self) -> None:
        """Close the link if no response has arrived for too long, even if its socket is open."""
        if self._response_timer is not None:
            self._response_timer.cancel()
            self._response_timer = None
        if self._link is None:
            return
        left_ms = self._response_ms + self._fetchers.settings.response_ms_max - self._now_ms()
        if left_ms <= 0:
            if self.machine.is_waiting():
                _LOG.info("leader does not respond, reconnecting: broker=%d", self._leader_id)
                self._link_failed()
                self.request_soon()
                return
            left_ms = self._fetchers.settings.response_ms_max
            self._response_ms = self._now_ms()
        self._response_timer = self._loop.call_later(left_ms / 1000, self._check_response_time)

    def _link_failed(self) -> None:
        self._close_link()
        if self._failures == 0:
            # The leader can be reachable again immediately, for example after a restart.
            self._failures = 1
            self.request_soon()
        else:
            self._connect_later()

    def _close_link(self) -> None:
        link = self._link
        self._link = None
        if link is not None:
            link.close()
            self.machine.link_closed()


def _ignore(_frame: bytes | None) -> None:
    pass
