"""Restores the state of producers from snapshots and from the log.

It loads the newest valid snapshot at or before an offset, then applies all later batches with the
same `apply` as at the time of writing. So the result is the same.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.env.files import Files
from headrace.log.producers import ProducerEntry, ProducerTable
from headrace.log.recovery.verify import replay_batch
from headrace.log.scan import Walk
from headrace.log.segment import Segment
from headrace.log.transactions import AbortedTransaction
from headrace.log.upkeep.snapshots import decode_snapshot

if TYPE_CHECKING:
    from headrace.log.log import Log

_COMMIT_EVERY = 1024


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:020d}.snapshot"


def producers_at(
    files: Files,
    directory: str,
    segments: Sequence[Segment],
    snapshots: list[int],
    offset: int,
    producers_max: int,
    rolled: Sequence[tuple[int, dict[int, ProducerEntry]]] = (),
) -> ProducerTable:
    """The table before an offset. Invalid snapshots are removed from the list and from the disk.

    A snapshot from before the first segment is not used: its sequences can be stale, and stale
    sequences reject valid producers. `rolled` has states that are not in a snapshot yet.
    """
    table = ProducerTable(producers_max)
    start = first = segments[0].base_offset if segments else offset
    in_memory = dict(rolled)
    known = [at for at in {*snapshots, *in_memory} if first <= at <= offset]
    for candidate in sorted(known, reverse=True):
        if candidate in in_memory:
            table.entries.update(in_memory[candidate])
            table.reopen_transactions()
            start = candidate
            break
        try:
            data = files.read_file(snapshot_path(directory, candidate))
        except FileNotFoundError:
            data = b""
        loaded = decode_snapshot(data, candidate, producers_max)
        if loaded is not None:
            table, start = loaded, candidate
            break
        snapshots.remove(candidate)
        files.remove(snapshot_path(directory, candidate))
    for at, segment in enumerate(segments):
        is_before = at + 1 < len(segments) and segments[at + 1].base_offset <= start
        if not is_before and segment.base_offset < offset and start < offset:
            replay_segment(files, segment, table, start, offset)
    table.undecided.clear()
    return table


def replay_segment(
    files: Files, segment: Segment, table: ProducerTable, start: int, end: int
) -> list[AbortedTransaction]:
    """Apply the batches of a segment in [start, end); returns the transactions aborted there."""
    aborted: list[AbortedTransaction] = []
    position = 0
    if start > segment.base_offset:
        position, _ = segment.locate(start, segment.size, True)
    walk = Walk(files, segment.open().fd, position, segment.size, False)
    count = 0
    while (batch := walk.next()) is not None and batch.base_offset < end:
        transaction = replay_batch(table, walk, batch)
        if transaction is not None:
            aborted.append(transaction)
        count += 1
        if count % _COMMIT_EVERY == 0:
            table.commit()
    table.commit()
    return aborted


def rebuild_aborted(log: "Log", segment: Segment) -> list[AbortedTransaction]:
    """Rebuild the list of aborted transactions of a segment whose index is missing or damaged."""
    table = producers_at(
        log.files,
        log.path,
        log.segments.all,
        log.durable.snapshots,
        segment.base_offset,
        log.settings.producers_max,
    )
    aborted = replay_segment(log.files, segment, table, segment.base_offset, log.log_end_offset)
    segment.set_aborted(aborted)
    return aborted
