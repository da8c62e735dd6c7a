"""One broker: which parts there are, in which order they start, and in which they stop.

Start: data directory (locked), store, listeners (bound, silent), registration and image, logs;
then clients are served. Stop goes the other way, and the clean marker is the last thing written.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.config.broker import BrokerConfig
from headrace.config.changes import check_broker_config, check_topic_config
from headrace.controller.service import Controller
from headrace.controller.topics_machine import TopicLimits
from headrace.coordination.database import StoreFileError
from headrace.coordination.embedded import EmbeddedStore
from headrace.coordination.layout import LayoutError
from headrace.coordination.port import StoreUnavailable
from headrace.env.clock import Clock, SystemClock
from headrace.env.files import Files, SystemFiles
from headrace.handlers.context import BrokerContext
from headrace.handlers.partitions import PartitionTable
from headrace.log.directory import DirectoryError, LogDirectory, RemoveDirectory
from headrace.log.state import LogSettings
from headrace.model.errors import ApiError
from headrace.node.groups import Groups
from headrace.node.replicas import Replicas
from headrace.replication.partition import Partition
from headrace.runtime.worker import Worker
from headrace.server.server import Server

if TYPE_CHECKING:
    from headrace.node.adoption import Adoption
    from headrace.node.compaction import Compaction

STORE_FILE = "headrace-store.db"
TICK_SECONDS = 1.0
_log = logging.getLogger("headrace")


class CannotStart(Exception):
    """This broker cannot run as it is set up; the sentence says what to do."""


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock | None = None,
        files: Files | None = None,
        *,
        adopt: bool = False,
    ) -> None:
        """With `adopt`, partitions that Apache Kafka left in the data directory are taken over."""
        self.config = config
        self.address = ""
        self._adopts = adopt
        self._clock = clock or SystemClock()
        self._logs = LogDirectory(
            config.data_directory, files or SystemFiles(), self._clock, _log_settings(config)
        )
        self._table = PartitionTable()
        self._store: EmbeddedStore | None = None
        self._controller: Controller | None = None
        self._server: Server | None = None
        self._worker: Worker | None = None
        self._replicas: Replicas | None = None
        self._groups: Groups | None = None
        self._compaction: Compaction | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: dict[str, float] = {}

    async def start(self) -> None:
        """Serve clients when this returns; if it raises, nothing is left behind."""
        try:
            await self._start()
        except (DirectoryError, StoreFileError, StoreUnavailable, LayoutError, ApiError) as error:
            await self.stop()
            raise CannotStart(
                error.message if isinstance(error, ApiError) else str(error)
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config = self.config
        self._logs.open()
        store = self._store = await EmbeddedStore.open(os.path.join(self._logs.path, STORE_FILE))
        controller = Controller(
            store,
            config.node_id,
            limits=TopicLimits(
                partitions_default=config.get_int("num.partitions"),
                replication_factor_default=config.get_int("default.replication.factor"),
                partitions_per_topic_max=config.get_int("headrace.partitions.max"),
            ),
            check_topic_config=self._check_topic_config,
            check_broker_config=_check_broker_config,
        )
        worker = self._worker = Worker("files", asyncio.get_running_loop())
        groups = self._groups = Groups(config, self._clock, controller, self._table, worker)
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
        )
        server = self._server = Server(context, self._table)
        ports = {
            endpoint.listener: server.listen(endpoint.listener, endpoint.host, endpoint.port)
            for endpoint in config.listeners
        }
        endpoints = config.advertise(ports, socket.gethostname())
        known_id = self._logs.identity.get("cluster.id", "")
        await controller.start(endpoints, rack=config.rack, cluster_id=known_id)
        self._controller = controller
        self._logs.claim(controller.image.cluster_id, config.node_id)
        adoption = await self._adopt(controller) if self._adopts else None
        replicas = self._replicas = Replicas(
            config.node_id, config, controller.image, self._logs, self._table, self._remove
        )
        replicas.load()
        if adoption is not None:
            await adoption.finish(controller)
        replicas.fetch = server.fetch
        controller.on_change(replicas.changed)
        groups.start(server.turn)
        controller.on_change(groups.changed)
        server.start()
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        self.address = ",".join(f"{each.host}:{each.port}" for each in endpoints)

    async def stop(self) -> None:
        """Let requests end, put everything on disk, and say so there."""
        if self._timer is not None:
            self._timer.cancel()
        if self._groups is not None:
            self._groups.stop()
        if self._server is not None:
            await self._server.drain()
        if self._controller is not None:
            await self._controller.stop()
        if self._compaction is not None:
            await self._compaction.stop()
        if self._worker is not None:
            self._worker.stop()
        # The workers have ended; what they did is told to the logs here.
        await asyncio.sleep(0)
        while any(log.job is not None for log in self._logs.logs()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        if self._replicas is not None:
            broker_epoch = self._controller.broker_epoch if self._controller else -1
            self._logs.close(self._replicas.high_watermarks(), broker_epoch)
        if self._store is not None:
            await self._store.close()

    async def _adopt(self, controller: Controller) -> "Adoption":
        from headrace.node.adoption import Adoption

        adoption = Adoption(self._logs, controller.image.topics)
        adoption.look(self._check_topic_config)
        await adoption.carry_out(controller)
        return adoption

    def _check_topic_config(self, settings: Mapping[str, str]) -> None:
        check_topic_config(self.config, settings)

    def _remove(self, removal: RemoveDirectory) -> None:
        assert self._worker is not None
        self._worker.submit(removal.run, _done)

    def _tick(self) -> None:
        """What is done by the clock, for all partitions at once."""
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        assert self._replicas is not None
        assert self._worker is not None
        if self._is_due("log.retention.check.interval.ms"):
            self._logs.apply_retention(self._replicas.high_watermarks())
        if self._is_due("producer.id.expiration.check.interval.ms"):
            self._logs.expire_producers(self.config.get_int("producer.id.expiration.ms"))
        if self._is_due("log.flush.offset.checkpoint.interval.ms"):
            job = self._logs.checkpoint_job(self._replicas.high_watermarks())
            self._worker.submit(job.run, _done)
        if self._compaction is None and self._is_due("log.cleaner.backoff.ms"):
            self._maybe_start_compaction()
        self._start_jobs()

    def _maybe_start_compaction(self) -> None:
        """Only where there is something to compact: start-up need not wait for the code."""
        if not self.config.get_bool("log.cleaner.enable"):
            return
        if any(partition.log.config.compacts for partition in self._table):
            from headrace.node.compaction import Compaction

            assert self._worker is not None
            self._compaction = Compaction(
                self.config, self._clock, self._logs, self._table, self._worker, self._start_job
            )
            self._compaction.start()

    def _start_jobs(self) -> None:
        assert self._server is not None
        turn = self._server.turn
        turn.begin()
        for log in self._logs.tick(self._clock.wall_ms()):
            partition = self._table.get(log.partition.topic, log.partition.partition)
            if partition is not None:
                turn.start_job(partition)

    def _start_job(self, partition: Partition) -> None:
        assert self._server is not None
        self._server.turn.begin()
        self._server.turn.start_job(partition)

    def _is_due(self, interval_name: str) -> bool:
        now = self._clock.monotonic()
        due = self._due.setdefault(interval_name, now + self.config.get_int(interval_name) / 1000)
        if now < due:
            return False
        del self._due[interval_name]
        return True


def _log_settings(config: BrokerConfig) -> LogSettings:
    return LogSettings(
        drop_behind_bytes=config.get_int("headrace.log.drop.behind.bytes"),
        drop_behind_step_bytes=config.get_int("headrace.log.drop.behind.trigger.bytes"),
        producers_max=config.get_int("headrace.producers.max"),
        decompressed_bytes_max=config.get_int("headrace.decompress.bytes.max"),
    )


def _check_broker_config(settings: Mapping[str, str], node_id: int | None) -> None:
    check_broker_config(settings, for_all_brokers=node_id is None)


def _done(_result: object, error: BaseException | None) -> None:
    if error is not None:
        _log.error("work on the data directory failed", exc_info=error)
