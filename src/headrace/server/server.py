"""The network side of one broker: listeners, connections and periodic work.

Owns periodic checks: idle connections, stalled large frames, and the drain at the end. It does not
depend on topics; handlers get the requests.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from headrace.cluster.changes import ImageChange
from headrace.env.rate_limited_log import LimitedWarnings
from headrace.handlers.fetch import FetchHandler
from headrace.handlers.offset_commit import CommitHandler
from headrace.handlers.produce import ProduceHandler
from headrace.model.sasl import ANONYMOUS
from headrace.replication.append_queue import AppendQueue
from headrace.replication.fetch_reader import FetchReader
from headrace.replication.leader_sessions import LeaderSessions
from headrace.replication.read_replicas import RACK_AWARE, RackAwareReplicas
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.dispatch import handle_frame
from headrace.requests.topic_permissions import TopicPermissions
from headrace.runtime.worker import Worker
from headrace.server.address_rates import AddressRates
from headrace.server.connection import EPOLLIN, Connection
from headrace.server.limited import LimitedRequest, Timed
from headrace.server.listener import Admission, Begin, Listener, bind
from headrace.server.plane import Plane
from headrace.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.header import read_header

if TYPE_CHECKING:
    from headrace.replication.partition_table import PartitionTable
    from headrace.server.handshakes import Handshakes
    from headrace.server.logins import Logins

UPKEEP_SECONDS = 0.5
DRAIN_SECONDS = 0.5
_log = logging.getLogger(__name__)


class Server:
    def __init__(
        self,
        broker: BrokerContext,
        partitions: "PartitionTable",
        appends: AppendQueue,
        reader: FetchReader,
        sessions: LeaderSessions | None,
    ) -> None:
        """`sessions` responds to the fetches of followers; None for a broker without a cluster."""
        config = broker.config
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._clock = broker.clock
        self._appends = appends
        self._read_worker = reader.worker
        self._check_worker = Worker("check", self._loop)
        self._permissions = TopicPermissions(broker.authorizer, broker.image)
        self.fetch = self._create_fetch_handler(partitions, reader)
        self.plane = self._create_plane(partitions, sessions)
        self.deliver = self.plane.deliver
        """Ends a loop iteration: writes, acknowledges, sends."""
        self._admission = Admission(config)
        self._rates = AddressRates(self._clock.monotonic, self._loop.call_later)
        broker.controller.on_change(self._changed)
        self._closings = LimitedWarnings(_log, "connections were closed", self._clock.monotonic)
        idle_ms = config.get_int("connections.max.idle.ms")
        self._idle_seconds = idle_ms / 1000 if idle_ms >= 0 else float("inf")
        self._listeners: list[Listener] = []
        self._logins: Logins | None = None
        self._handshakes: Handshakes | None = None
        self._upkeep: asyncio.TimerHandle | None = None

    def _create_fetch_handler(
        self, partitions: "PartitionTable", reader: FetchReader
    ) -> FetchHandler:
        broker = self._broker
        config = broker.config
        choose = None
        if config.get_optional_str("replica.selector.class") == RACK_AWARE:
            choose = RackAwareReplicas(broker.node_id, broker.image).choose
        return FetchHandler(
            partitions=partitions,
            appends=self._appends,
            reader=reader,
            call_later=self._loop.call_later,
            random_id=lambda: random.randint(1, 0x7FFFFFFF),
            response_bytes_max=config.get_int("fetch.max.bytes"),
            sessions_max=config.get_int("max.incremental.fetch.session.cache.slots"),
            permissions=self._permissions,
            choose=choose,
        )

    def _create_plane(self, partitions: "PartitionTable", sessions: LeaderSessions | None) -> Plane:
        broker = self._broker
        config = broker.config
        appends = self._appends
        return Plane(
            appends=appends,
            produce=ProduceHandler(partitions, appends, self._check_worker, self._permissions),
            fetch=self.fetch,
            sessions=sessions,
            commits=CommitHandler(broker.image, appends, broker.groups, broker.authorizer),
            cold=self._cold,
            reader=self._read_worker,
            monotonic=self._clock.monotonic,
            request_bytes_max=config.get_int("socket.request.max.bytes"),
            queued_bytes_max=config.get_int("queued.max.request.bytes"),
            response_bytes_max=config.get_int("headrace.response.queue.bytes.max"),
            spin_seconds=config.get_int("headrace.spin.us") / 1_000_000,
            quotas=broker.quotas,
            on_close=self._closed,
        )

    def listen(self, name: str, host: str, port: int) -> int:
        """Open a listener and return its port; clients are served from `start` on."""
        config = self._broker.config
        sockets = bind(host, port, config.get_int("socket.listen.backlog.size"))
        self._listeners.extend(
            Listener(
                self.plane,
                name,
                sock,
                self._admission,
                config.get_int("socket.send.buffer.bytes"),
                config.get_int("socket.receive.buffer.bytes"),
                self._rates,
                is_internal=name == config.internal_listener,
                begin=self._begin_at(name),
            )
            for sock in sockets
        )
        return int(sockets[0].getsockname()[1])

    def _begin_at(self, listener: str) -> Begin | None:
        login = self._login_at(listener)
        tls = None if self._broker.tls is None else self._broker.tls.by_name.get(listener)
        if tls is None:
            return login
        if self._handshakes is None:
            from headrace.server.handshakes import Handshakes

            self._handshakes = Handshakes(self.plane, self._admission, self._warn)
        return partial(self._handshakes.begin, tls, login)

    def _login_at(self, listener: str) -> Begin | None:
        if listener not in self._broker.config.mechanisms:
            return None
        if self._logins is None:
            from headrace.server.logins import Logins

            self._logins = Logins(self._broker, self.plane, self._admission, self._warn)
        return partial(self._logins.begin, listener)

    def start(self) -> None:
        self._use_quotas()
        self._loop.add_reader(self.plane.epoll.fileno(), self.plane.run)
        self._upkeep = self._loop.call_later(UPKEEP_SECONDS, self._keep_up)

    def reload_certificates(self) -> None:
        """Read the keys and certificates of all listeners again."""
        if self._broker.tls is not None:
            self._broker.tls.check(self._broker.worker, self._clock.monotonic(), is_forced=True)

    async def drain(self) -> None:
        """Accept no more requests, wait for those in progress, then close all connections."""
        for listener in self._listeners:
            listener.close()
        self.plane.is_draining = True
        for connection in list(self.plane.connections.values()):
            connection.watch(connection.events & ~EPOLLIN)
        self.fetch.expire_all()
        deadline = self._clock.monotonic() + DRAIN_SECONDS
        while self._is_busy() and self._clock.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self.close()

    def close(self) -> None:
        if self._upkeep is not None:
            self._upkeep.cancel()
            self._loop.remove_reader(self.plane.epoll.fileno())
        for waiting in (self._handshakes, self._logins):
            if waiting is not None:
                waiting.close()
        self._rates.close()
        for connection in list(self.plane.connections.values()):
            self.plane.close(connection, "")
        # No client waits for the results of these two.
        for worker in (self._read_worker, self._check_worker):
            worker.stop(finish=False)
        self._appends.stop()
        self.plane.epoll.close()

    def _is_busy(self) -> bool:
        return any(
            connection.exchanges or not connection.responses.is_empty()
            for connection in self.plane.connections.values()
        )

    def _cold(self, connection: Connection, frame: bytes) -> bytes | Awaitable[bytes]:
        header = read_header(frame)
        if self._logins is not None and header.api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            response = self._logins.relogins.handle(connection, header.api_key, frame)
            if response is not None:
                return response
        limits = connection.quota.limits
        request = None if limits is None else LimitedRequest(connection, limits)
        context = RequestContext(
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            connection.name,
            connection.listener,
            connection.is_internal,
            has_own_login=connection.principal != ANONYMOUS and not connection.session.is_token,
            principal=connection.principal,
            apply_quota=None if request is None else request.apply_quota,
        )
        response = handle_frame(self._broker, context, frame, header.body_at)
        return (
            response if request is None or isinstance(response, bytes) else Timed(response, request)
        )

    def _changed(self, change: ImageChange) -> None:
        if change.has_new_quotas:
            self._use_quotas()

    def _use_quotas(self) -> None:
        quotas = self._broker.image.quotas
        self._rates.update(quotas)
        self._broker.quotas.update(quotas)
        self.plane.throttling.quotas_changed()

    def _closed(self, connection: Connection, reason: str) -> None:
        if self._logins is not None:
            self._logins.relogins.forget(connection)
        self._admission.leave(connection.name.rpartition(":")[0])
        self._warn(connection.name, reason)

    def _warn(self, name: str, reason: str) -> None:
        if reason:
            self._closings.log(f"connection closed by the broker: peer={name} reason={reason}")

    def _keep_up(self) -> None:
        self._upkeep = self._loop.call_later(UPKEEP_SECONDS, self._keep_up)
        self._appends.expire()
        self._closings.count()
        plane = self.plane
        now = plane.now = self._clock.monotonic()
        for waiting in (self._handshakes, self._logins):
            if waiting is not None:
                waiting.expire(now)
        if self._broker.tls is not None:
            self._broker.tls.check(self._broker.worker, now)
        for stalled in plane.memory.stalled(now):
            plane.close(stalled, "its incomplete request used memory that other requests need")
        for connection in list(plane.connections.values()):
            idle_seconds = now - connection.progressed_at
            is_held = connection.muted or connection.quota.is_throttled
            if idle_seconds <= self._idle_seconds or is_held or connection.is_internal:
                continue
            is_unread = not connection.responses.is_empty()
            if is_unread:
                connection.drop_unsent()
            plane.close(connection, "it does not read its responses" if is_unread else "")
