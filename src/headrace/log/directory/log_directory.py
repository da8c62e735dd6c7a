"""A broker's data directory: its lock, its identity and the logs of its partitions.

Loop thread only, like the logs; start-up, `create` and `close` wait for the disk.

1. One process at a time uses the directory: it holds the lock from `open` to `close`.
2. A partition directory is served only for the topic id for which it was created (B10). A directory
   of an unknown topic stays until `remove_strays`. A directory whose partition was reassigned to
   other brokers is removed.
"""

import errno
import logging
import os
import uuid
from collections.abc import Collection, Container, Mapping
from functools import partial
from uuid import UUID

from headrace.config.topic import TopicConfig
from headrace.env.clock import Clock, WallClockCheck
from headrace.env.files import Files
from headrace.env.rate_limited_log import RecurringProblem
from headrace.log import errors
from headrace.log.directory import offset_files
from headrace.log.directory.data_proof import DataProof
from headrace.log.directory.directory_jobs import (
    DELETE_SUFFIX,
    DeletedDirectories,
    RemoveDirectories,
    WriteCheckpoints,
    id_in_name,
)
from headrace.log.directory.directory_lock import DirectoryError, DirectoryLock
from headrace.log.directory.offset_files import KafkaOffsets
from headrace.log.directory.partition_directories import (
    belongs_to,
    is_empty,
    parse_partition,
    read_topic_id,
    summary,
    write_topic_id,
)
from headrace.log.directory.recorded_partitions import RecordedPartitions
from headrace.log.directory.temporary_files import is_temporary
from headrace.log.file import OpenSegments
from headrace.log.log import Log
from headrace.log.recovery.opening import recover
from headrace.log.segment import Segment
from headrace.log.state import IncompleteFiles, LogSettings, Report, offline_state
from headrace.log.upkeep import checkpoints, closing, durability
from headrace.model.ids import id_text
from headrace.model.topics import TopicPartition

_LOG = logging.getLogger(__name__)

STRAY_SUFFIX = "-stray"
_PROCESS_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that do not concern only one log, so the start fails."""


class LogDirectory:
    def __init__(
        self,
        path: str,
        files: Files,
        clock: Clock,
        settings: LogSettings | None = None,
        open_max: int = 512,
    ) -> None:
        self.path = os.path.abspath(path)
        self.files = files
        self.clock = clock
        self.wall_clock_check = WallClockCheck(clock)
        settings = settings or LogSettings()
        failed = partial(self._log_failed, settings.failed)
        self.settings = settings._replace(failed=failed, rejected=self._write_rejected)
        self.open_segments = OpenSegments(open_max)
        self._checkpoint_problem = RecurringProblem(_LOG, clock.monotonic)
        self._write_problem = RecurringProblem(_LOG, clock.monotonic)
        self.proof = DataProof(files, self.path)
        """The proof that the directory still has all writes of the previous process."""
        self.identity: dict[str, str] = {}
        """The content of meta.properties: cluster.id, node.id, directory.id."""
        self.directory_id = id_text(uuid.uuid4())
        """A new directory gets a new id."""
        self.unopened: list[TopicPartition] = []
        """Partition directories on disk that are not opened yet."""
        self.strays: list[str] = []
        """Directories of former topics, renamed because a new topic has the same name."""
        self.lost_file_count = 0
        """The number of files that recovery has set aside since the start."""
        self.high_watermarks: dict[TopicPartition, int] = {}
        """From the checkpoint of the previous process."""
        self._deleted: dict[TopicPartition, Log] = {}
        """Deleted partitions whose directories are not renamed yet."""
        self._deleted_directories = DeletedDirectories(files, self.path)
        self._kafka_offsets: dict[TopicPartition, KafkaOffsets] = {}
        self.recorded = RecordedPartitions(files, self.path)
        self._checkpointing: WriteCheckpoints | None = None
        self._deleted_before: set[TopicPartition] = set()
        """Deleted partitions. Kafka's checkpoint files can still have their offsets."""
        self._logs: dict[TopicPartition, Log] = {}
        self._lock = DirectoryLock(files, self.path)
        self._is_new = False
        """Whether no broker has used the directory before this start."""

    # Start

    def open(self, expected_broker_epoch: int | None = None) -> None:
        """Lock the directory and list its content. `load` opens the logs."""
        self._lock.acquire()
        self.identity = checkpoints.decode_meta_properties(self._read(checkpoints.META_PROPERTIES))
        self._is_new = not self.identity
        self.directory_id = self.identity.get("directory.id") or self.directory_id
        self.proof.read(expected_broker_epoch)
        self.high_watermarks = offset_files.read_high_watermarks(self.files, self.path)
        self._kafka_offsets = offset_files.read_kafka_offsets(self.files, self.path)
        for info in self.files.list_directory(self.path):
            if not info.is_directory:
                self._remove_if_temporary(info.name)
            elif info.name.endswith(DELETE_SUFFIX):
                self._deleted_directories.paths.append(self._file(info.name))
            elif info.name.endswith(STRAY_SUFFIX):
                self.strays.append(info.name)
            else:
                partition = parse_partition(info.name)
                if partition is not None:
                    self.unopened.append(partition)
        self._find_lost()

    def _remove_if_temporary(self, name: str) -> None:
        """Remove a file that an interrupted `replace_file` of an earlier process has left."""
        if is_temporary(name):
            try:
                self.files.remove(self._file(name))
            except OSError as error:
                message = "temporary file not removed: path=%s error=%s"
                _LOG.warning(message, self._file(name), error)

    def abandon(self) -> None:
        """Unlock the directory after a failed start. Remove new files if no broker ever used it."""
        self._lock.abandon(self._is_new)

    def _find_lost(self) -> None:
        # A clean stop also records directories that were renamed before.
        aside = (
            []
            if self.proof.was_clean
            else [*self.strays, *map(os.path.basename, self._deleted_directories.paths)]
        )
        self.recorded.read(set(map(str, self.unopened)), self.proof.incarnation.is_cached, aside)
        lost = filter(None, map(parse_partition, self.recorded.lost))
        if names := summary(list(lost)):
            message = "segments were removed since the previous start, so no log of this broker "
            message += "is trusted as complete: directory=%s partitions=%s"
            _LOG.error(message, self.path, names)

    def claim(self, cluster_id: str, node_id: int, **more: str) -> None:
        """Assign the directory to this node; raises if it belongs to another one."""
        for name, value in (("cluster.id", cluster_id), ("node.id", str(node_id))):
            known = self.identity.get(name)
            if known is None and name == "node.id":
                known = self.identity.get("broker.id")
            if known is not None and known != value:
                raise DirectoryError(
                    f"Data directory {self.path} belongs to {name} {known}, but this broker has "
                    f"{name} {value}. Choose another directory, or use the broker's former "
                    "settings."
                )
        identity = {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(node_id),
            "directory.id": self.directory_id,
            **more,
        }
        if identity != self.identity:
            data = checkpoints.encode_meta_properties(identity)
            self.files.replace_file(self._file(checkpoints.META_PROPERTIES), data)
            self.identity = identity

    @property
    def kept_epoch(self) -> int:
        """The broker epoch whose writes are all still in this directory; -1 without a proof."""
        return -1 if self.recorded.lost else self.proof.kept_epoch

    @property
    def last_epoch(self) -> int:
        """The last broker epoch that wrote to this directory; -1 if unknown."""
        return self.proof.last_epoch

    def registered(self, broker_epoch: int) -> None:
        """This broker has registered with a new broker epoch."""
        self.proof.registered(broker_epoch)

    def _log_failed(self, report: Report, partition: TopicPartition, error: OSError) -> None:
        """Report the failure; the kernel can have dropped pages that were not written."""
        report(partition, error)
        self.proof.withdraw()

    def _write_rejected(self, partition: TopicPartition, error: OSError) -> None:
        self._write_problem.log(
            f"write failed, records rejected: directory={self.path} partition={partition} "
            f"error={error}"
        )

    def load(
        self,
        wanted: Mapping[TopicPartition, tuple[UUID, TopicConfig]],
        reassigned: Mapping[TopicPartition, UUID] | None = None,
        only_copies: Container[TopicPartition] = (),
    ) -> None:
        """Open the logs of the `wanted` partitions. Others stay in `unopened`, and are logged.

        `reassigned` partitions are now only on other brokers, so their directories are removed.
        Only this broker has all committed records of `only_copies`, so a lost one stays offline.
        """
        for partition, topic_id in (reassigned or {}).items():
            if partition in self.unopened and belongs_to(
                self.files, self._file(str(partition)), topic_id
            ):
                self.unopened.remove(partition)
                self._rename_aside(str(partition))
        for partition in self.unopened:
            if partition not in wanted:
                continue
            topic_id, config = wanted[partition]
            if partition in only_copies and self._is_lost(partition, topic_id):
                self._logs[partition] = self._lost_log(partition, topic_id, config)
                continue
            try:
                if not self._belongs_or_set_aside(partition, topic_id):
                    continue
                log = self._open_log(partition, topic_id, config, self.proof.was_clean)
            except OSError as error:
                if error.errno in _PROCESS_ERRORS:
                    raise
                reason = f"{error.filename or self._file(str(partition))}: {error.strerror}"
                self._logs[partition] = self._offline_log(partition, topic_id, config, reason)
                continue
            self._logs[partition] = log
            self._record_opened(log)
        for name in [each for each in self.recorded.lost if parse_partition(each) not in wanted]:
            self.recorded.remove(name)
        self.unopened = [partition for partition in self.unopened if partition not in wanted]
        if self.unopened:
            names = summary(self.unopened)
            _LOG.warning(
                "partitions of unknown topics: directory=%s partitions=%s", self.path, names
            )
        if self.lost_file_count:
            message = "recovery set files aside, 'headrace log check' lists them: dir=%s files=%d"
            _LOG.error(message, self.path, self.lost_file_count)
        self.proof.remove_clean_marker()

    def _read(self, name: str) -> bytes:
        try:
            return self.files.read_file(self._file(name))
        except FileNotFoundError:
            return b""

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    # Partitions

    def _belongs_or_set_aside(self, partition: TopicPartition, topic_id: UUID) -> bool:
        """Whether a directory belongs to this topic; if not, it is renamed."""
        path = self._file(str(partition))
        if belongs_to(self.files, self._file(str(partition)), topic_id):
            if read_topic_id(self.files, path) != topic_id:
                write_topic_id(self.files, path, topic_id)
            return True
        recorded_id = self.recorded.ids.get(str(partition))
        aside = self._deleted_directories.unused_path(str(partition), STRAY_SUFFIX, recorded_id)
        self.recorded.remove(str(partition))
        self.files.rename(path, aside)
        self.files.sync_directory(self.path)
        self.high_watermarks.pop(partition, None)
        self.strays.append(os.path.basename(aside))
        _LOG.warning("replica of a former topic set aside: from=%s to=%s", path, aside)
        return False

    def _open_log(
        self, partition: TopicPartition, topic_id: UUID, config: TopicConfig, is_synced: bool
    ) -> Log:
        path = self._file(str(partition))
        now_ms = self.clock.wall_ms()
        kafka_offsets = self._kafka_offsets_of(partition)
        files, opened, settings = self.files, self.open_segments, self.settings
        state = recover(files, opened, path, config, settings, now_ms, kafka_offsets, is_synced)
        self.lost_file_count += state.lost_file_count
        if self.recorded.checkpointed.get(str(partition), topic_id) != topic_id:
            self.high_watermarks.pop(partition, None)
        log = Log(files, opened, path, partition, topic_id, config, state, settings)
        if kafka_offsets is not None:
            log.set_first_dirty_offset(kafka_offsets.first_dirty_offset)
        if log.is_offline:
            self.settings.failed(partition, IncompleteFiles(log.offline_reason))
        return log

    def _record_opened(self, log: Log) -> None:
        """Record a log of an earlier start. On a full disk, the next checkpoint records it."""
        try:
            self.recorded.add(str(log.partition), log.topic_id)
        except OSError as error:
            _LOG.warning(
                "partition not listed, retrying with the next checkpoint: partition=%s error=%s",
                log.partition,
                error,
            )

    def _is_lost(self, partition: TopicPartition, topic_id: UUID) -> bool:
        return self.recorded.lost.get(str(partition)) == topic_id

    def _lost_log(self, partition: TopicPartition, topic_id: UUID, config: TopicConfig) -> Log:
        """An offline log for a lost partition. Nothing is written, so the loss stays detectable."""
        reason = "its segments were removed since the previous start"
        return self._offline_log(partition, topic_id, config, reason)

    def _offline_log(
        self, partition: TopicPartition, topic_id: UUID, config: TopicConfig, reason: str
    ) -> Log:
        """A log that rejects reads and writes, and ends at its checkpointed high watermark."""
        path = self._file(str(partition))
        end = self.high_watermarks.get(partition, 0)
        files, opened = self.files, self.open_segments
        segment = Segment(files, opened, path, end, self.clock.wall_ms())
        state = offline_state(segment, 0, reason)
        log = Log(files, opened, path, partition, topic_id, config, state, self.settings)
        self.settings.failed(partition, IncompleteFiles(log.offline_reason))
        return log

    def _kafka_offsets_of(self, partition: TopicPartition) -> KafkaOffsets | None:
        """The offsets in Kafka's checkpoint files; None if they are of an earlier partition."""
        kafka_offsets = self._kafka_offsets.get(partition)
        path = self._file(str(partition))
        if kafka_offsets is None and partition not in self._deleted_before:
            return None
        marker = f"{path}/{checkpoints.NEW_LOG}"
        has_checkpoint = self.files.exists(f"{path}/{checkpoints.LOG_CHECKPOINT}")
        if not has_checkpoint and is_empty(self.files, path):
            self.files.write_file(marker, b"", sync=False)
            self.files.sync_directory(path)
        return None if self.files.exists(marker) else kafka_offsets

    def create(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        *,
        is_only_copy: bool = False,
    ) -> Log:
        """The log of a partition. Opens or creates it if necessary.

        With `is_only_copy`, a lost partition stays offline.
        """
        log = self._logs.get(partition)
        if log is not None and log.topic_id == topic_id:
            return log
        if log is not None:
            self.delete(partition)
        if partition in self._deleted:
            self._put_aside(partition)
        try:
            if is_only_copy and self._is_lost(partition, topic_id):
                log = self._lost_log(partition, topic_id, config)
            else:
                log = self._create(partition, topic_id, config)
        except OSError as error:
            raise errors.not_written(partition, error) from None
        self._logs[partition] = log
        if partition in self.unopened:
            self.unopened.remove(partition)
        return log

    def _create(self, partition: TopicPartition, topic_id: UUID, config: TopicConfig) -> Log:
        path = self._file(str(partition))
        is_synced = self.proof.was_clean and partition in self.unopened
        if not self.files.exists(path) or not self._belongs_or_set_aside(partition, topic_id):
            self.files.make_directory(path)
            self._deleted_directories.unopened.add(str(partition))
            write_topic_id(self.files, path, topic_id)
            is_synced = True  # The directory is new, so recovery relies on no entry of it.
        log = self._open_log(partition, topic_id, config, is_synced)
        self.recorded.add(str(partition), topic_id)
        self._deleted_directories.unopened.discard(str(partition))
        return log

    def go_offline_if_incomplete(self, log: Log) -> None:
        """Take the log of an in-sync replica offline if it lacks committed records."""
        committed = self.high_watermarks.get(log.partition, 0)
        if self.proof.has_all_writes and log.log_end_offset < committed:
            end = int(log.log_end_offset)
            reason = f"it ends at offset {end}, below its high watermark {committed}"
            log.go_offline(IncompleteFiles(reason), reason)

    def compacted_partitions(self) -> list[TopicPartition]:
        """The partitions with compacted records, by the cleaner's checkpoint."""
        return [
            each
            for each, kafka_offsets in self._kafka_offsets.items()
            if kafka_offsets.first_dirty_offset > 0
        ]

    def get(self, partition: TopicPartition) -> Log | None:
        return self._logs.get(partition)

    def logs(self) -> list[Log]:
        return list(self._logs.values())

    def delete(self, partition: TopicPartition) -> None:
        """Remove a partition from memory. `put_aside` and `removal_job` remove its files later."""
        log = self._logs.pop(partition)
        self.recorded.remove(str(partition))
        self._deleted_before.add(partition)
        self._kafka_offsets.pop(partition, None)
        log.abandon()
        self.high_watermarks.pop(partition, None)
        self._deleted[partition] = log

    def discard(self, partition: TopicPartition) -> None:
        """Rename the directory of a new partition whose `create` failed, for `removal_job`."""
        if str(partition) in self._deleted_directories.unopened:
            self._rename_aside(str(partition))

    def put_aside(self) -> bool:
        """Rename the directory of one deleted partition. False if no such partition is left."""
        if not self._deleted:
            return False
        self._put_aside(next(iter(self._deleted)))
        return True

    def _put_aside(self, partition: TopicPartition) -> None:
        log = self._deleted.pop(partition)
        for segment in log.segments.all:
            segment.close()
        self._rename_aside(str(partition))

    def recorded_id(self, name: str) -> UUID | None:
        """The topic id under which a stray was recorded. If it is unknown: None, or a random id."""
        return id_in_name(name, STRAY_SUFFIX) or self.recorded.ids.get(name)

    def remove_strays(self, names: Collection[str]) -> None:
        """Rename directories from `unopened` or `strays`, so that `removal_job` removes them."""
        self.unopened = [partition for partition in self.unopened if str(partition) not in names]
        self.strays = [name for name in self.strays if name not in names]
        for name in names:
            self._rename_aside(name)

    def _rename_aside(self, name: str) -> None:
        self.recorded.remove(name)
        self._deleted_directories.rename(name)

    def removal_job(self) -> RemoveDirectories | None:
        """A job that removes all directories that were renamed since the last call."""
        return self._deleted_directories.removal_job()

    # Upkeep

    def logs_with_due_jobs(self, now_ms: int) -> list[Log]:
        """The logs with a job that is due."""
        return [log for log in self._logs.values() if durability.is_due(log, now_ms)]

    def apply_retention(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Apply retention to all logs; by time only while the wall clock is trusted (I31)."""
        now_ms, by_time = self.clock.wall_ms(), self.wall_clock_check.is_trusted()
        for partition, log in self._logs.items():
            log.apply_retention(now_ms, high_watermarks.get(partition, 0), by_time)

    def expire_producers(self, expiration_ms: int) -> int:
        """Remove the producers that were idle for this long from all logs; returns their number."""
        now = self.clock.monotonic()
        return sum(log.producer_expiry.run(log, now, expiration_ms) for log in self.logs())

    def checkpoint_job(self, high_watermarks: Mapping[TopicPartition, int]) -> WriteCheckpoints:
        """A job that writes Kafka's checkpoint files with the current offsets."""
        self.high_watermarks = dict(high_watermarks)
        if self._checkpointing is not None and self._checkpointing.is_written:
            self.recorded.written()
        contents = offset_files.encode_all(self._logs, high_watermarks)
        ids = {str(partition): log.topic_id for partition, log in self._logs.items()}
        self._checkpointing = self._write_job(contents + self.recorded.checkpoint(ids))
        return self._checkpointing

    def cleaner_checkpoint_job(self) -> WriteCheckpoints:
        """A job that writes the checkpoint file with the first dirty offsets."""
        return self._write_job([offset_files.encode_cleaner_offsets(self._logs)])

    def _write_job(self, contents: list[tuple[str, bytes]]) -> WriteCheckpoints:
        files = [(self._file(name), data) for name, data in contents]
        return WriteCheckpoints(self.files, files, self._checkpoint_problem)

    # Stop

    def close(self, high_watermarks: Mapping[TopicPartition, int], broker_epoch: int = -1) -> bool:
        """Close all logs. True if the next start needs no recovery."""
        return closing.run_to_end(self.close_in_steps(high_watermarks, broker_epoch))

    def close_in_steps(
        self, high_watermarks: Mapping[TopicPartition, int], broker_epoch: int = -1
    ) -> closing.Steps:
        """Close all logs, then write the marker. Yields progress as `close_all` does.

        No job may be running. A job that has not started is dropped.
        """
        if self._lock.fd < 0:
            return False
        now_ms = self.clock.wall_ms()
        while self.put_aside():
            yield 0
        logs = list(self._logs.values())
        sync_all = partial(self.files.sync_file_system, self._lock.fd, [log.path for log in logs])
        is_clean = yield from closing.close_all(logs, now_ms, sync_all)
        self.checkpoint_job(high_watermarks).run()
        self.checkpoint_job(high_watermarks)
        self.recorded.close()
        if is_clean:
            is_clean = self.proof.write_clean_marker(broker_epoch)
        self._logs.clear()
        self._lock.release()
        return is_clean
