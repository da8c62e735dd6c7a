"""Removes replicas of topics that were deleted while this broker was down.

Owns `headrace-strays`, which records the store that this data directory belongs to. Runs on the
loop; a worker reads and writes files, and another one removes the directories.

1. A directory is removed only if the store is known to be complete: the same store as before, and
   not an older copy of it. Otherwise all strays stay until an operator has moved or deleted them.
2. A directory is removed only if its topic id is known and the image lacks it. The id is that of an
   intact checkpoint. Without a checkpoint, it is that of partition.metadata, if no records exist or
   this broker has recorded the partition with the same id. A damaged directory, one with `.lost`
   files, or one that Apache Kafka wrote stays.
3. Removal begins log.segment.delete.delay.ms after the start, while the store is connected.
4. A stray that gets another name after the start, because its topic was created again, is removed
   like the others.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from headrace.env.files import Files
from headrace.log.directory.directory_jobs import RemoveDirectories
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.directory.temporary_files import STRAYS
from headrace.log.recovery.lost import is_lost
from headrace.log.recovery.opening import read_log_checkpoint
from headrace.log.upkeep import checkpoints

FILE = STRAYS
_PER_TICK_MAX = 100
_logger = logging.getLogger(__name__)

Submit = Callable[
    [Callable[[], object], Callable[[object, BaseException | None], None]],
    None,
]
"""Runs a job on a worker, then calls the second argument on the loop with its result or error."""


class StoreRecord(NamedTuple):
    """Describes the store at a start of this broker. The file contains one record."""

    store: str = ""
    """Identifies the store. A store that was created again has another value."""
    epoch: int = -1
    """The broker epoch. It increases with every registration in the same store."""
    keeps: bool = False
    """Whether strays are kept, because the store might lack topics."""


def decide(before: StoreRecord, current: StoreRecord, *, has_strays: bool) -> StoreRecord:
    """The record to write at this start. It `keeps` the strays if the store might lack topics.

    Later starts keep them as well, until no strays are left: if the store has lost its topics, all
    replicas are strays.
    """
    if not has_strays:
        return current
    is_complete = current.store == before.store and current.epoch > before.epoch
    return current._replace(keeps=before.keeps or not is_complete)


def encode(record: StoreRecord) -> bytes:
    return json.dumps({"version": 0, **record._asdict()}).encode()


def decode(data: bytes) -> StoreRecord:
    """Decode a record. The record is empty if the data is damaged."""
    try:
        fields = json.loads(data)
        return StoreRecord(str(fields["store"]), int(fields["epoch"]), bool(fields["keeps"]))
    except (ValueError, KeyError, TypeError):
        return StoreRecord()


class Strays:
    def __init__(
        self,
        logs: LogDirectory,
        topics_by_id: Mapping[UUID, str],
        current: StoreRecord,
        delay_s: float,
        submit: Submit,
        remove: Callable[[RemoveDirectories], None],
    ) -> None:
        """`topics_by_id` belongs to the image, and changes with it."""
        self._logs = logs
        self._topics_by_id = topics_by_id
        self._current = current
        self._delay_s = delay_s
        self._submit = submit
        self._remove = remove
        self._candidates: list[str] = []
        self._renamed: set[str] = set()
        """All `strays` of the directory that were added to `_candidates`."""
        self._due_s = math.inf

    def start(self, now: float) -> None:
        """Look for strays, and decide whether they can be removed."""
        logs = self._logs
        self._candidates = [*map(str, logs.unopened)]
        self._add_renamed()
        path = f"{logs.path}/{FILE}"
        job = partial(
            _update_record, logs.files, path, self._current, has_strays=bool(self._candidates)
        )
        self._submit(job, partial(self._record_updated, now + self._delay_s))

    def _record_updated(self, due: float, record: object, error: BaseException | None) -> None:
        if isinstance(record, StoreRecord) and not record.keeps:
            self._due_s = due
        elif error is not None:
            _logger.error("stray replicas kept after an internal error", exc_info=error)
        else:
            _logger.warning(
                "stray replicas kept, the store might lack topics; start a single broker with "
                "--adopt to serve them, or delete them once they are not needed: directory=%s "
                "count=%d",
                self._logs.path,
                len(self._candidates),
            )

    def tick(self, now: float, *, is_connected: bool) -> None:
        """Examine some strays when they are due, and remove them."""
        if now < self._due_s or not is_connected:
            return
        self._add_renamed()
        if not self._candidates:
            return
        names, self._candidates = self._candidates[:_PER_TICK_MAX], self._candidates[_PER_TICK_MAX:]
        recorded = {name: self._logs.recorded_id(name) for name in names}
        job = partial(_topic_ids, self._logs.files, self._logs.path, recorded)
        self._submit(job, self._examined)

    def _add_renamed(self) -> None:
        added = [name for name in self._logs.strays if name not in self._renamed]
        self._renamed.update(added)
        self._candidates += added

    def _examined(self, topic_ids: object, error: BaseException | None) -> None:
        """Rename the directories of stray replicas. A worker thread then deletes them."""
        if error is not None:
            _logger.error("stray replicas kept after an internal error", exc_info=error)
            return
        assert isinstance(topic_ids, dict)
        # Some replicas can have been opened in the meantime.
        present = {*self._logs.strays, *map(str, self._logs.unopened)}
        removed = {
            name
            for name, topic_id in topic_ids.items()
            if name in present and self._is_removable(name, topic_id)
        }
        self._logs.remove_strays(removed)
        removal = self._logs.removal_job()
        if removal is not None:
            self._remove(removal)

    def _is_removable(self, name: str, topic_id: UUID | None) -> bool:
        path = f"{self._logs.path}/{name}"
        if topic_id is None or topic_id in self._topics_by_id:
            _logger.warning("stray replica kept: path=%s topic_id=%s", path, topic_id)
            return False
        _logger.info(
            "removing stray replica of a deleted topic: path=%s topic_id=%s", path, topic_id
        )
        return True


# The following functions run on a worker thread.


def _update_record(
    files: Files, path: str, current: StoreRecord, *, has_strays: bool
) -> StoreRecord:
    """Compare the record of the last start with the current one, and write the new record.

    If the file cannot be read, all strays are kept.
    """
    try:
        before = decode(files.read_file(path))
    except OSError:
        before = StoreRecord()
    record = decide(before, current, has_strays=has_strays)
    try:
        files.replace_file(path, encode(record))
    except OSError as error:
        _logger.warning("file not written: path=%s error=%s", path, error)
    return record


def _topic_ids(
    files: Files, parent: str, recorded: Mapping[str, UUID | None]
) -> dict[str, UUID | None]:
    return {
        name: _readable_topic_id(files, f"{parent}/{name}", recorded_id)
        for name, recorded_id in recorded.items()
    }


def _readable_topic_id(files: Files, path: str, recorded_id: UUID | None) -> UUID | None:
    try:
        return topic_id_of(files, path, recorded_id)
    except OSError as error:
        _logger.warning("stray replica not readable: path=%s error=%s", path, error)
        return None


def topic_id_of(files: Files, path: str, recorded_id: UUID | None = None) -> UUID | None:
    """The topic id of a directory that can be removed with its topic; None if it must stay."""
    infos = files.list_directory(path)
    if any(info.is_directory or is_lost(info.name) for info in infos):
        return None
    checkpoint = read_log_checkpoint(files, path)
    if checkpoint is not None:
        return checkpoint.topic_id
    names = {info.name for info in infos}
    if checkpoints.PARTITION_METADATA not in names:
        return None
    metadata = files.read_file(f"{path}/{checkpoints.PARTITION_METADATA}")
    topic_id = checkpoints.decode_partition_metadata(metadata)
    if not any(info.size > 0 and info.name.endswith(".log") for info in infos):
        return topic_id
    # The broker can be killed before it writes the first checkpoint. It records the topic ids of
    # directories that it creates, but not of directories that Apache Kafka wrote.
    is_own = checkpoints.LOG_CHECKPOINT not in names and topic_id == recorded_id
    return topic_id if is_own else None
