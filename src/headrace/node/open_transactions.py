"""Ends transactions that were open when the adopted Apache Kafka broker stopped.

After its next start, Kafka would commit those that its coordinator had decided to commit, and abort
the others after their timeout. Their producers no longer exist, so Headrace ends them immediately;
otherwise, read_committed consumers would wait forever. Reads the decisions in
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
_LOG = logging.getLogger(__name__)


def decided_to_commit(files: Files, directories: Iterable[str]) -> set[int]:
    """The producers whose last transaction Kafka's coordinator had decided to commit."""
    states: dict[bytes, bytes | None] = {}
    for directory in directories:
        for info in files.list_directory(directory):
            if info.name.endswith(".log") and offset_of(info.name) >= 0:
                _read_states(files, f"{directory}/{info.name}", states)
    found: set[int] = set()
    for value in states.values():
        if value is None or len(value) < _VALUE.size:
            continue
        version, producer_id, _, _, status = _VALUE.unpack_from(value)
        if version in _VERSIONS and status in _DECIDED_TO_COMMIT:
            found.add(producer_id)
    return found


def _read_states(files: Files, path: str, states: dict[bytes, bytes | None]) -> None:
    fd = files.open(path)
    try:
        walk = BatchWalk(files, fd, 0, files.size(fd), True)
        while (batch := walk.next()) is not None:
            if not batch.is_control():
                for record in read_records(Batch(walk.records(batch), 0, batch.size())):
                    states[record.key or b""] = record.value
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
        _LOG.warning(
            "transaction left open by Kafka: partition=%s producer_id=%d result=%s",
            log.partition,
            producer_id,
            "committed, as decided by Kafka" if is_committed else "aborted",
        )
