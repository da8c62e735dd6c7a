"""One broker: its parts, and the order in which they start and stop.

The broker locks its data directory, connects to the store, binds its listeners, registers, reads
the image, and opens its logs. Then it serves clients. It stops in reverse order, and writes the
marker of the clean stop last.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.cluster.store_elections import DirectoryProof
from headrace.config.broker import BrokerConfig
from headrace.config.changes import check_broker_config, check_topic_config
from headrace.config.setting import ConfigError
from headrace.controller.failover import TopicRules
from headrace.controller.service import Controller
from headrace.controller.topics_machine import TopicLimits
from headrace.coordination.database import StoreFileError
from headrace.coordination.embedded import STORE_FILE
from headrace.coordination.layout import CLUSTER_ID, LayoutError, decode_cluster_id
from headrace.coordination.port import NoNode, SessionState, Store, StoreUnavailable
from headrace.coordination.retries import retry
from headrace.log.directory.directory_jobs import RemoveDirectories
from headrace.log.directory.directory_lock import DirectoryError
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.state import LogSettings, report_failure
from headrace.model.errors import ApiError
from headrace.model.topics import TopicPartition
from headrace.node.environment import Environment, RealEnvironment, RequestServer
from headrace.node.first_user import InvalidFirstUser, create_first_user, take_first_user
from headrace.node.groups import Groups
from headrace.node.image_authorizer import Authorization
from headrace.node.maintenance import Maintenance, log_failure
from headrace.node.replicas import Replicas
from headrace.replication.append_queue import AppendQueue
from headrace.replication.fetch_reader import FetchReader
from headrace.replication.partition_table import PartitionTable
from headrace.requests.context import BrokerContext
from headrace.runtime.worker import Worker
from headrace.security.users import credentials_of

if TYPE_CHECKING:
    from headrace.node.adoption import Adoption
    from headrace.node.audit_file import AuditFile
    from headrace.node.replication import Replication
    from headrace.runtime.tls_listeners import TlsListeners

PROGRESS_SECONDS = 1.0
ZOOKEEPER = "zookeeper"
"""The store in meta.properties, if the topics of this broker are in ZooKeeper."""
_FAILURES = (
    ApiError,
    ConfigError,
    DirectoryError,
    InvalidFirstUser,
    LayoutError,
    StoreFileError,
    StoreUnavailable,
)
_logger = logging.getLogger(__name__)


class CannotStart(Exception):
    """The broker cannot start with these settings; the message contains the next step."""


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment | None = None,
        *,
        adopt: bool = False,
    ) -> None:
        """With `adopt`, the broker adopts the partitions of Apache Kafka in the data directory."""
        self.config = config
        self.address = ""
        self.internal_address = ""
        """The address for other brokers of the cluster; empty for a single broker."""
        self._adopts = adopt
        self._environment = environment = environment or RealEnvironment()
        self._clock = environment.clock
        self._logs = LogDirectory(
            config.data_directory,
            environment.files,
            self._clock,
            _log_settings(config)._replace(failed=self._log_failed),
        )
        self._table = PartitionTable()
        self._store: Store | None = None
        self._controller: Controller | None = None
        self._server: RequestServer | None = None
        self._replication: Replication | None = None
        self._worker: Worker | None = None
        self._remover: Worker | None = None
        self._replicas: Replicas | None = None
        self._groups: Groups | None = None
        self._maintenance: Maintenance | None = None
        self._audit_file: AuditFile | None = None
        self.offline_log_count = 0
        """The number of logs that were offline when this broker stopped."""

    async def start(self) -> None:
        """Start to serve clients. If it raises CannotStart, a new data directory is unchanged."""
        try:
            await self._start()
        except BaseException as error:
            await self.stop()
            if self._controller is None:
                self._logs.abandon()
            if isinstance(error, _FAILURES):
                message = error.message if isinstance(error, ApiError) else str(error)
                raise CannotStart(message) from error
            raise

    def has_user(self, name: str) -> bool:
        """Whether this user exists and has a password. The broker must have started."""
        assert self._controller is not None
        return bool(credentials_of(self._controller.image.users.get(name, {})))

    @property
    def can_cancel_start(self) -> bool:
        """Whether `start` can be cancelled. It cannot once this broker might be registered."""
        return self._server is None

    async def _start(self) -> None:
        config = self.config
        user = take_first_user(os.environ)
        tls = self._make_tls()
        self._open_audit_file()
        self._logs.open()
        self._reject_other_kind()
        store = self._store = await self._environment.open_store(config, self._logs.path)
        await retry(lambda: self._check_cluster(store), self._connect_wait_s(store))
        controller = self._make_controller(store, tls)
        worker = self._worker = self._environment.worker("files")
        self._remover = Worker("remover", asyncio.get_running_loop())
        syncs = self._environment.worker("sync")
        may_be_stale = self._has_no_session if config.is_clustered else _never
        appends = AppendQueue(self._clock, syncs, self._deliver, may_be_stale)
        reader = FetchReader(appends, self._environment.worker("read"))
        replication = self._make_replication(controller, appends, reader)
        replicas = self._make_replicas(controller, appends, replication)
        authorization = Authorization(config, controller, self._clock)
        is_clock_trusted = self._logs.wall_clock_check.is_trusted
        groups = self._groups = Groups(
            config, self._clock, controller, self._table, appends, worker, is_clock_trusted
        )
        has_isolated_leaders = _never
        sessions = None
        if replication is not None:
            has_isolated_leaders = replication.has_isolated_leaders
            sessions = replication.sessions
        context = BrokerContext(
            config.node_id,
            controller.image,
            config,
            controller,
            self._logs,
            self._table.by_topic,
            self._clock,
            worker,
            groups.service,
            opened=replicas.opened,
            start_job=appends.start_job,
            wait_for_election=controller.wait_for_election,
            brokers_to_list=controller.brokers_to_list,
            was_lost_lately=controller.was_lost_lately,
            has_isolated_leaders=has_isolated_leaders,
            authorizer=authorization.authorizer,
            tls=tls,
            audit=authorization.audit,
        )
        server = self._server = self._environment.make_server(
            context, self._table, appends, reader, sessions
        )
        endpoints = config.advertise(self._open_listeners(server), socket.gethostname())
        await controller.start(
            endpoints,
            rack=config.rack,
            cluster_id=self._logs.identity.get("cluster.id", ""),
            proof=DirectoryProof(
                self._logs.directory_id, self._logs.kept_epoch, self._logs.last_epoch
            ),
            needs_secret=bool(config.mechanisms),
        )
        self._controller = controller
        authorization.load()
        if controller.registered_ms:
            self._logs.wall_clock_check.set_reference(controller.registered_ms)
        self._claim(controller.image.cluster_id)
        store_id = await self._read_store_id(store)
        await self._load(controller, appends, replicas, replication)
        if config.offers_passwords:
            await create_first_user(controller, worker, user)
        groups.start()
        controller.on_change(groups.changed)
        server.start()
        self._maintenance = self._make_maintenance(
            controller, appends, replicas, replication, worker, store_id
        )
        self._maintenance.start()
        by_name = {each.listener: each.address for each in endpoints}
        self.internal_address = by_name.pop(config.internal_listener, "")
        self.address = ",".join(by_name.values())

    def _open_listeners(self, server: RequestServer) -> dict[str, int]:
        """Open all listeners, and return their ports by name."""
        # Bind IPv6 first: a listener on 127.0.0.1 also binds ::1, if its port is free there.
        return {
            endpoint.listener: server.listen(endpoint.listener, endpoint.host, endpoint.port)
            for endpoint in sorted(self.config.listeners, key=lambda each: ":" not in each.host)
        }

    def _open_audit_file(self) -> None:
        path = self.config.get_optional_str("headrace.audit.file")
        if path is None:
            return
        from headrace.node.audit_file import AuditFile

        try:
            self._audit_file = AuditFile(path)
        except OSError as error:
            raise CannotStart(
                f"headrace.audit.file cannot be written: {error}. Choose another file."
            ) from None

    def _store_wait_s(self, store: Store) -> float:
        """A wait that is longer than the session of this broker's former process can last."""
        configured_ms = self.config.get_int("zookeeper.session.timeout.ms")
        # The ensemble can set a longer timeout.
        return 1 + max(configured_ms, store.session_timeout_ms) * 1.5 / 1000

    def _connect_wait_s(self, store: Store) -> float:
        """How long the start waits for a store that became unreachable."""
        timeout_ms = self.config.get_optional_int("zookeeper.connection.timeout.ms") or 0
        return max(self._store_wait_s(store), timeout_ms / 1000)

    async def _check_cluster(self, store: Store) -> None:
        """Reject a directory of another cluster before this broker registers."""
        try:
            data, _ = await store.get(CLUSTER_ID)
        except NoNode:
            return
        self._claim(decode_cluster_id(data))

    async def _read_store_id(self, store: Store) -> str | None:
        """Identifies the store. None during adoption, which keeps strays until the next start."""
        _, stat = await retry(lambda: store.get(CLUSTER_ID), self._connect_wait_s(store))
        return None if self._adopts else f"{stat.czxid}-{stat.created_ms}"

    def _claim(self, cluster_id: str) -> None:
        store = {"store": ZOOKEEPER} if self.config.is_clustered else {}
        self._logs.claim(cluster_id, self.config.node_id, **store)

    def _reject_other_kind(self) -> None:
        """Reject a single broker's directory in a cluster, and a cluster's for a single broker."""
        logs = self._logs
        is_single = logs.files.exists(f"{logs.path}/{STORE_FILE}")
        if self.config.is_clustered and is_single:
            raise CannotStart(
                f"Data directory {logs.path} belongs to a single broker, whose topics are not in "
                "ZooKeeper. Remove zookeeper.connect, or convert the directory with headrace up "
                f"--brokers N --data {logs.path}."
            )
        if not (self.config.is_clustered or is_single) and logs.identity.get("store") == ZOOKEEPER:
            raise CannotStart(
                f"Data directory {logs.path} belongs to a broker of a cluster, whose topics are in "
                "ZooKeeper. Set zookeeper.connect, or choose another directory."
            )

    def _make_tls(self) -> "TlsListeners | None":
        if not self.config.tls_listeners:
            return None
        from headrace.runtime.tls_listeners import TlsListeners

        try:
            return TlsListeners(self.config, self._clock.monotonic)
        except ValueError as error:
            raise CannotStart(f"{error}.") from None

    def reload_certificates(self) -> None:
        """Read the keys and certificates of all listeners again."""
        if self._server is not None:
            self._server.reload_certificates()

    def _make_controller(self, store: Store, tls: "TlsListeners | None") -> Controller:
        config = self.config
        internal = None if tls is None else tls.by_name.get(config.internal_listener)
        return Controller(
            store,
            config.node_id,
            network=self._environment.network if config.is_clustered else None,
            clock=self._clock,
            internal_listener=config.internal_listener,
            entropy=self._environment.entropy,
            rules=self._rules,
            silence_s=config.get_int("zookeeper.session.timeout.ms") / 1000,
            balance_interval_s=_balance_interval_s(config),
            imbalance_max=config.get_int("leader.imbalance.per.broker.percentage") / 100,
            request_timeout_s=config.get_int("request.timeout.ms") / 1000,
            limits=TopicLimits(
                partitions_default=config.get_int("num.partitions"),
                replication_factor_default=config.get_int("default.replication.factor"),
                partitions_per_topic_max=config.get_int("headrace.partitions.max"),
            ),
            check_topic_config=self._check_topic_config,
            check_broker_config=_check_broker_config,
            registration_wait_s=self._connect_wait_s(store),
            registered=self._logs.registered,
            tls=None if internal is None else internal.client_context,
        )

    def _make_replication(
        self, controller: Controller, appends: AppendQueue, reader: FetchReader
    ) -> "Replication | None":
        if not self.config.is_clustered:
            return None
        from headrace.node.replication import Replication

        return Replication(
            self.config,
            self._environment.network,
            self._clock,
            controller,
            self._table,
            appends,
            reader,
        )

    def _make_replicas(
        self, controller: Controller, appends: AppendQueue, replication: "Replication | None"
    ) -> Replicas:
        return Replicas(
            node_id=self.config.node_id,
            config=self.config,
            image=controller.image,
            logs=self._logs,
            table=self._table,
            clock=self._clock,
            appends=appends,
            remove=self._remove,
            broker_epoch=lambda: controller.broker_epoch,
            fetchers=replication,
        )

    def _make_maintenance(
        self,
        controller: Controller,
        appends: AppendQueue,
        replicas: Replicas,
        replication: "Replication | None",
        worker: Worker,
        store_id: str | None,
    ) -> Maintenance:
        return Maintenance(
            config=self.config,
            clock=self._clock,
            controller=controller,
            logs=self._logs,
            table=self._table,
            appends=appends,
            replicas=replicas,
            replication=replication,
            worker=worker,
            remove=self._remove,
            is_connected=lambda: not self._has_no_session(),
            store_id=store_id,
        )

    async def _load(
        self,
        controller: Controller,
        appends: AppendQueue,
        replicas: Replicas,
        replication: "Replication | None",
    ) -> None:
        """Open the logs, and become leader or follower of their partitions."""
        adoption = await self._adopt(controller) if self._adopts else None
        self._replication = replication
        self._replicas = replicas
        replicas.load()
        if adoption is not None:
            await adoption.reserve_producer_ids(controller)
            adoption.end_transactions(self._table, appends)
        controller.on_change(replicas.changed)
        if replication is not None:
            controller.on_change(replication.changed)
            replication.start()

    def _deliver(self) -> None:
        """Send responses that are completed outside of a loop iteration of the server."""
        if self._server is not None:
            self._server.deliver()

    def _log_failed(self, partition: TopicPartition, error: OSError) -> None:
        report_failure(partition, error)
        is_running = self._maintenance is not None and self._maintenance.is_running
        if is_running and self._replication is not None:
            self._replication.report_failed_disk(partition)

    def _has_no_session(self) -> bool:
        return self._store is None or self._store.state is not SessionState.CONNECTED

    async def stop(self) -> None:
        """Complete the requests, sync all logs, and write the marker of the clean stop."""
        if self._maintenance is not None:
            self._maintenance.stop_timer()
        if self._replication is not None:
            await self._replication.hand_over()
        if self._groups is not None:
            self._groups.stop()
        if self._server is not None:
            await self._server.drain()
        if self._replication is not None:
            self._replication.stop()
        if self._controller is not None:
            await self._controller.stop()
        if self._maintenance is not None:
            await self._maintenance.stop()
        if self._replicas is not None:
            self._replicas.stop()
        if self._remover is not None:
            self._remover.stop(finish=False)
        if self._worker is not None:
            self._worker.stop()
        # The workers have ended, but their results are queued on the loop. Run the queued
        # callbacks.
        loop = asyncio.get_running_loop()
        callbacks_run = loop.create_future()
        loop.call_soon_threadsafe(callbacks_run.set_result, None)
        await callbacks_run
        if self._replicas is not None:
            await self._close_logs(self._replicas.high_watermarks())
        if self._store is not None:
            await self._store.close()
        if self._audit_file is not None:
            self._audit_file.close()

    async def _close_logs(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Close the logs some at a time, and log the progress of a long stop."""
        broker_epoch = self._controller.last_epoch if self._controller else -1
        logs = self._logs.logs()
        reported = self._clock.monotonic()
        for closed in self._logs.close_in_steps(high_watermarks, broker_epoch):
            if self._clock.monotonic() - reported >= PROGRESS_SECONDS:
                reported = self._clock.monotonic()
                _logger.info("closing logs: closed=%d of=%d", closed, len(logs))
            await asyncio.sleep(0)
        self.offline_log_count = sum(log.is_offline for log in logs)

    async def _adopt(self, controller: Controller) -> "Adoption":
        from headrace.node.adoption import Adoption

        adoption = Adoption(self._logs, controller.image.topics)
        adoption.find_topics(self._check_topic_config)
        await adoption.create_topics(controller)
        await adoption.set_quotas(controller)
        return adoption

    def _rules(self, settings: Mapping[str, str]) -> TopicRules:
        """The settings of a topic that affect elections."""
        config = self.config.topic_config(settings)
        return TopicRules(config.min_insync_replicas, config.unclean_leader_election_enable)

    def _check_topic_config(self, settings: Mapping[str, str]) -> None:
        check_topic_config(self.config, settings)

    def _remove(self, removal: RemoveDirectories) -> None:
        # On a separate thread, so that no acknowledgement waits for the deletion of many files.
        assert self._remover is not None
        self._remover.submit(removal.run, log_failure)


def _log_settings(config: BrokerConfig) -> LogSettings:
    return LogSettings(
        drop_behind_bytes=config.get_int("headrace.log.drop.behind.bytes"),
        drop_behind_step_bytes=config.get_int("headrace.log.drop.behind.trigger.bytes"),
        producers_max=config.get_int("headrace.producers.max"),
        decompressed_bytes_max=config.get_int("headrace.decompress.bytes.max"),
    )


def _balance_interval_s(config: BrokerConfig) -> float | None:
    if not (config.is_clustered and config.get_bool("auto.leader.rebalance.enable")):
        return None
    return float(config.get_int("leader.imbalance.check.interval.seconds"))


def _check_broker_config(settings: Mapping[str, str], node_id: int | None) -> None:
    check_broker_config(settings, for_all_brokers=node_id is None)


def _never() -> bool:
    return False
