"""Ends transactions that were open when the adopted Apache Kafka broker stopped.

Kafka would commit transactions that its coordinator had decided to commit, and abort the others
after their timeout. Headrace ends them immediately, because their producers no longer exist.
Otherwise read_committed consumers would wait forever. This module reads Kafka's decisions in
`__transaction_state`, and writes only markers.
"""

import logging
import struct
from collections.abc import Callable, Iterable

from headrace.env.files import Files
from headrace.log.log import Log
from headrace.log.recovery.leftovers import offset_of
from headrace.log.scan import BatchWalk
from headrace.record.batch import Batch
from headrace.record.build import build_transaction_marker
from headrace.record.decode import read_records

STATE_TOPIC = "__transaction_state"
_ABORT = 0
_COMMIT = 1
_VERSIONS = (0, 1)
_VALUE = struct.Struct(">hqhib")
"""Version, producer id, producer epoch, timeout, status: the first fields of both versions."""
_DECIDED_TO_COMMIT = (2, 4)
"""The statuses PrepareCommit and CompleteCommit."""
_logger = logging.getLogger(__name__)


def decided_to_commit(files: Files, directories: Iterable[str]) -> set[int]:
    """Ids of producers whose last transaction Kafka's coordinator had decided to commit."""
    state_by_key: dict[bytes, bytes | None] = {}
    for directory in directories:
        for info in files.list_directory(directory):
            if info.name.endswith(".log") and offset_of(info.name) >= 0:
                _read_states(files, f"{directory}/{info.name}", state_by_key)
    producer_ids: set[int] = set()
    for value in state_by_key.values():
        if value is None or len(value) < _VALUE.size:
            continue
        version, producer_id, _, _, status = _VALUE.unpack_from(value)
        if version in _VERSIONS and status in _DECIDED_TO_COMMIT:
            producer_ids.add(producer_id)
    return producer_ids


def _read_states(files: Files, path: str, state_by_key: dict[bytes, bytes | None]) -> None:
    fd = files.open(path)
    try:
        walk = BatchWalk(files, fd, 0, files.size(fd), True)
        while (batch := walk.next()) is not None:
            if not batch.is_control():
                for record in read_records(Batch(walk.records(batch), 0, batch.size())):
                    state_by_key[record.key or b""] = record.value
    finally:
        files.close(fd)


def end_transactions(
    log: Log, committed: set[int], now_ms: int, append: Callable[[bytes], object]
) -> None:
    """End every transaction that is open in a log; `append` writes a marker to it."""
    for producer_id in list(log.producers.open_transactions.values()):
        entry = log.producers.entries[producer_id]
        is_committed = producer_id in committed
        append(
            build_transaction_marker(
                _COMMIT if is_committed else _ABORT,
                producer_id=producer_id,
                producer_epoch=int(entry.epoch),
                coordinator_epoch=max(int(entry.coordinator_epoch), 0),
                timestamp=now_ms,
            )
        )
        _logger.warning(
            "transaction left open by Kafka: partition=%s producer_id=%d result=%s",
            log.partition,
            producer_id,
            "committed, as decided by Kafka" if is_committed else "aborted",
        )
