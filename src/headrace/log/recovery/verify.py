# HOT
"""Recovery's inner loop: verifies, indexes and applies all batches of a segment.

It is compiled, because start-up after a crash spends most of its time here.
"""

from typing import Final

from mypy_extensions import i64

from headrace.log.epochs import EpochCache
from headrace.log.producers import ProducerTable
from headrace.log.scan import BatchWalk
from headrace.log.segment import RELATIVE_OFFSET_MAX, Segment
from headrace.log.transactions import AbortedTransaction, read_end_marker
from headrace.record.batch import Batch

_COMMIT_EVERY: Final = 1024


def replay_batch(table: ProducerTable, walk: BatchWalk, batch: Batch) -> AbortedTransaction | None:
    """Apply one batch of a walk to the producers. Returns the transaction that it aborted."""
    if batch.producer_id < 0:
        return None
    if not batch.is_control():
        table.apply(batch, batch.base_offset)
        return None
    marker = read_end_marker(batch, walk.records(batch))
    return None if marker is None else table.apply_marker(batch, batch.base_offset, marker)


def verify_segment(
    segment: Segment,
    walk: BatchWalk,
    producers: ProducerTable,
    epochs: EpochCache,
    end_offset: i64,
    index_interval: i64,
    now_ms: i64,
) -> tuple[i64, str]:
    """Apply the valid batches of a walk to indexes, producers and epochs.

    Sets the size of the segment to the valid part. Returns the end offset, and why the segment ends
    early ("" if it does not).
    """
    error = ""
    count: i64 = 0
    position = walk.position
    leader_epoch: i64 = epochs.latest()
    while True:
        batch: Batch | None = None
        if not walk.step():
            batch = walk.next()
            if batch is None:
                error = walk.error
                break
            walk.copy_fields(batch)
        base_offset = walk.base_offset
        last_offset = walk.last_offset
        if base_offset < end_offset:
            error = f"offset {base_offset} follows offset {end_offset - 1}"
            break
        if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            error = f"offset {last_offset} is too far from the segment's first"
            break
        if position == 0:
            segment.set_first_timestamp(walk.max_timestamp, now_ms)
        segment.index_batch(
            position, walk.position - position, last_offset, walk.max_timestamp, index_interval
        )
        if walk.leader_epoch > leader_epoch:
            leader_epoch = walk.leader_epoch
            epochs.assign(leader_epoch, base_offset)
        if walk.producer_id >= 0:
            aborted = replay_batch(producers, walk, batch or walk.last_batch())
            if aborted is not None:
                segment.add_aborted(aborted)
            count += 1
            if count % _COMMIT_EVERY == 0:
                producers.commit()
        position = walk.position
        end_offset = last_offset + 1
    producers.commit()
    segment.size = position
    return end_offset, error
