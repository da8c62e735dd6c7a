"""Removes replicas of topics that were deleted while this broker was down.

Owns `headrace-strays`, which records the store that this data directory belongs to. Runs on the
loop; a worker writes the file and removes the directories.

1. A directory is removed only if the store is known to be complete: the same store as before, and
   not an older copy of it. Otherwise all strays stay until an operator has moved or deleted them.
2. A directory is removed only if its topic id is known and the image lacks it. The id is that of an
   intact checkpoint; without records, that of partition.metadata. A damaged directory, one with
   `.lost` files, or one that Apache Kafka wrote stays.
3. Removal begins log.segment.delete.delay.ms after the start, while the store is connected.
"""

import json
import logging
import math
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from headrace.env.files import Files
from headrace.log import checkpoints
from headrace.log.directory import LogDirectory
from headrace.log.directory_jobs import RemoveDirectories
from headrace.log.lost import is_lost
from headrace.log.recovery import read_log_checkpoint

FILE = "headrace-strays"
_PER_TICK_MAX = 100
_log = logging.getLogger(__name__)


class Record(NamedTuple):
    """The store at the last start."""

    store: str = ""
    """Identifies the store; a store that was created again has another value."""
    epoch: int = -1
    """The broker epoch. It grows with every registration in the same store."""
    keeps: bool = False
    """Whether strays were found in a store that might lack topics."""


def decide(before: Record, now: Record, *, has_strays: bool) -> Record:
    """What to record now; if it `keeps`, the strays stay.

    The flag lasts until no strays are left: in a store without its topics, every replica is stray.
    """
    if not has_strays:
        return now
    is_complete = now.store == before.store and now.epoch > before.epoch
    return now._replace(keeps=before.keeps or not is_complete)


def encode(record: Record) -> bytes:
    return json.dumps({"version": 0, **record._asdict()}).encode()


def decode(data: bytes) -> Record:
    """An empty record if the file is missing or damaged."""
    try:
        fields = json.loads(data)
        return Record(str(fields["store"]), int(fields["epoch"]), bool(fields["keeps"]))
    except (ValueError, KeyError, TypeError):
        return Record()


class WriteRecord:
    """Writes the record; for a worker."""

    def __init__(self, files: Files, path: str, record: Record) -> None:
        self._files = files
        self._path = path
        self._data = encode(record)

    def run(self) -> None:
        try:
            self._files.replace_file(self._path, self._data)
        except OSError as error:
            _log.warning("file not written: path=%s error=%s", self._path, error)


class Strays:
    def __init__(
        self,
        logs: LogDirectory,
        topics_by_id: Mapping[UUID, str],
        store: str,
        broker_epoch: int,
        delay_s: float,
    ) -> None:
        """`topics_by_id` is the image's: it follows all changes."""
        self._logs = logs
        self._topics_by_id = topics_by_id
        self._now = Record(store, broker_epoch)
        self._delay_s = delay_s
        self._names: list[str] = []
        self._due = math.inf

    def start(self, now: float) -> WriteRecord:
        """Look for strays and decide whether they may be removed. Returns a job for a worker."""
        logs = self._logs
        self._names = [*map(str, logs.found), *logs.strays]
        path = f"{logs.path}/{FILE}"
        before = self._read(path)
        record = decide(before, self._now, has_strays=bool(self._names))
        if record.keeps:
            _log.warning(
                "stray replicas kept, the store might lack topics; delete them once they are not "
                "needed: directory=%s count=%d",
                logs.path,
                len(self._names),
            )
        elif self._names:
            self._due = now + self._delay_s
        return WriteRecord(logs.files, path, record)

    def _read(self, path: str) -> Record:
        """An empty record if the file cannot be read: all strays stay then."""
        try:
            return decode(self._logs.files.read_file(path))
        except OSError:
            return Record()

    def tick(self, now: float, *, is_connected: bool) -> RemoveDirectories | None:
        """Put some strays aside when they are due. Returns a job for a worker."""
        if now < self._due or not is_connected:
            return None
        names, self._names = self._names[:_PER_TICK_MAX], self._names[_PER_TICK_MAX:]
        if not self._names:
            self._due = math.inf
        # Others were opened in the meantime.
        present = {*self._logs.strays, *map(str, self._logs.found)}
        removed = {name for name in names if name in present and self._is_removable(name)}
        self._logs.remove_strays(removed)
        return self._logs.removal()

    def _is_removable(self, name: str) -> bool:
        logs = self._logs
        path = f"{logs.path}/{name}"
        try:
            topic_id = topic_id_of(logs.files, path)
        except OSError as error:
            _log.warning("stray replica not readable, kept: path=%s error=%s", path, error)
            return False
        if topic_id is None or topic_id in self._topics_by_id:
            _log.warning("stray replica kept: path=%s topic_id=%s", path, topic_id)
            return False
        _log.info("removing stray replica of a deleted topic: path=%s topic_id=%s", path, topic_id)
        return True


def topic_id_of(files: Files, path: str) -> UUID | None:
    """The topic id of a directory that can be removed with its topic; None if it must stay."""
    infos = files.list_directory(path)
    if any(info.is_directory or is_lost(info.name) for info in infos):
        return None
    checkpoint = read_log_checkpoint(files, path)
    if checkpoint is not None:
        return checkpoint.topic_id
    names = {info.name for info in infos}
    has_records = any(info.size > 0 and info.name.endswith(".log") for info in infos)
    if has_records or checkpoints.PARTITION_METADATA not in names:
        return None
    metadata = files.read_file(f"{path}/{checkpoints.PARTITION_METADATA}")
    return checkpoints.decode_partition_metadata(metadata)
