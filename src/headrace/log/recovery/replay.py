"""Restores the state of producers from snapshots and from the log.

Loads the newest valid snapshot at or below an offset. Then it applies all later batches with the
same method as an append (`ProducerTable.apply`), so that the result is the same.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.env.files import Files
from headrace.log.producers import ProducerEntry, ProducerTable
from headrace.log.recovery.verify import replay_batch
from headrace.log.scan import BatchWalk
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
    pending_snapshots: Sequence[tuple[int, dict[int, ProducerEntry]]] = (),
) -> ProducerTable:
    """The producers before an offset. Removes invalid snapshots from `snapshots` and from the disk.

    A snapshot below the first segment is not used: its sequences can be stale, and would reject
    valid producers. `pending_snapshots` contains states that are not on disk yet.
    """
    table = ProducerTable(producers_max)
    start = first = segments[0].base_offset if segments else offset
    in_memory = dict(pending_snapshots)
    candidates = [each for each in {*snapshots, *in_memory} if first <= each <= offset]
    for candidate in sorted(candidates, reverse=True):
        if candidate in in_memory:
            table.entries.update(in_memory[candidate])
            table.rebuild_open_transactions()
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
    for index, segment in enumerate(segments):
        is_below = index + 1 < len(segments) and segments[index + 1].base_offset <= start
        if not is_below and segment.base_offset < offset and start < offset:
            replay_segment(files, segment, table, start, offset)
    table.unreplicated.clear()
    return table


def replay_segment(
    files: Files, segment: Segment, table: ProducerTable, start: int, end: int
) -> list[AbortedTransaction]:
    """Apply the batches of a segment in [start, end). Returns the transactions aborted there."""
    aborted: list[AbortedTransaction] = []
    position = 0
    if start > segment.base_offset:
        position, _ = segment.locate(start, segment.size, True)
    walk = BatchWalk(files, segment.open().fd, position, segment.size, False)
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
    segment.replace_aborted(aborted)
    return aborted
