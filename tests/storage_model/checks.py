"""Compares a log with its model."""

from itertools import pairwise

from headrace.log.log import Log
from headrace.record.batch import Batch
from headrace.record.decode import read_batches, read_records
from tests.storage.log_scenario import stored_bytes
from tests.storage_model.history import Entry, History, ProducerState, StoredRecord, require


def check_numbers(log: Log, history: History) -> None:
    """The offsets of an open log agree with each other and with the model."""
    start, end = int(log.log_start_offset), int(log.log_end_offset)
    try:
        log.assert_invariants()
    except AssertionError as error:
        require(False, "invariant", str(error))
    require(end == history.end, "end", f"the log ends at {end}, the model at {history.end}")
    require(start <= end, "start beyond end", f"the log starts at {start} and ends at {end}")
    require(start >= history.start, "start", f"the log start went from {history.start} to {start}")
    require(start <= history.target, "start", f"{start} is beyond {history.target}")


def check_producers(log: Log, history: History) -> None:
    expected, found = history.producers(), producers_of(log)
    require(found == expected, "producers", f"found {found}, expected {expected}")


def producers_of(log: Log) -> dict[int, ProducerState]:
    return {
        producer_id: (
            int(entry.epoch),
            tuple(
                (
                    int(s.last_sequence),
                    int(s.last_offset),
                    int(s.last_offset_delta),
                    int(s.timestamp),
                )
                for s in entry.batches
            ),
        )
        for producer_id, entry in log.producers.entries.items()
    }


def check_known_producers(log: Log, history: History) -> None:
    """Each state of a producer, exact or not, comes from batches that were appended to the log."""
    known = {
        (e.producer[0], e.producer[1], e.producer[2] + e.last - e.base, e.last)
        for e in history.entries
    }
    for producer_id, (epoch, spans) in history.floor_table.items():
        known |= {(producer_id, epoch, span[0], span[1]) for span in spans}
    for producer_id, (epoch, spans) in producers_of(log).items():
        for span in spans:
            batch = (producer_id, epoch, span[0], span[1])
            require(batch in known, "producers", f"unknown batch (id, epoch, sequence, at) {batch}")


def check_content(log: Log, history: History) -> None:
    """Every record is the one that was written there, and none is missing."""
    start = int(log.log_start_offset)
    data = stored_bytes(log)
    entries = [entry for entry in history.entries if entry.last >= start]
    if data == b"".join(entry.data for entry in entries):
        for entry in entries[:: max(len(entries) // 3, 1)]:
            _check_read(log, entry)
    else:
        _check_batches(list(read_batches(data)), entries, history)
    _check_epochs(log, history, data)


def _check_batches(batches: list[Batch], entries: list[Entry], history: History) -> None:
    written = {entry.base: entry for entry in entries}
    expected = {record.offset: record for entry in entries for record in entry.records}
    found: dict[int, StoredRecord] = {}
    end = -1
    for batch in batches:
        base = int(batch.base_offset)
        require(base > end, "order", f"batch {base} after offset {end}")
        end = int(batch.last_offset())
        entry = written.get(base)
        require(
            entry is not None and entry.last == end, "two values", f"unknown batch {base} to {end}"
        )
        assert entry is not None
        require(
            int(batch.leader_epoch) == entry.leader_epoch,
            "two values",
            f"batch {base} has epoch {batch.leader_epoch}, not {entry.leader_epoch}",
        )
        for each in read_records(batch):
            found[each.offset] = StoredRecord(each.offset, each.key or b"", each.value)
    for offset, record in found.items():
        same = expected.get(offset) == record
        require(same, "two values", f"found {record}, expected {expected.get(offset)}")
        require(offset not in history.gone, "came back", f"offset {offset} was compacted")
    missing = expected.keys() - found.keys()
    lost = sorted(missing - history.may_miss)
    require(not lost, "missing", f"offsets {lost[:10]}")
    history.gone |= missing


def _check_epochs(log: Log, history: History, data: bytes) -> None:
    """The epoch cache is the one that a scan of the log yields."""
    start = int(log.log_start_offset)
    found = log.epochs.entries()
    require(log.leader_epoch == log.epochs.latest(), "epochs", f"{log.leader_epoch}: {found}")
    rises = all(e < f and at < to for (e, at), (f, to) in pairwise(found))
    require(rises, "epochs", f"they do not rise: {found}")
    scanned: list[tuple[int, int]] = []
    for batch in read_batches(data):
        epoch, offset = int(batch.leader_epoch), max(int(batch.base_offset), start)
        cached = log.epochs.epoch_for(offset)
        require(cached == epoch, "epochs", f"{cached} at {offset}, not {epoch}: {found}")
        if not scanned or scanned[-1][0] != epoch:
            scanned.append((epoch, offset))
    if not history.has_gaps:
        is_same = found == scanned if scanned else len(found) <= 1
        require(is_same, "epochs", f"found {found}, a scan yields {scanned}")


def _check_read(log: Log, entry: Entry) -> None:
    """An offset inside of a batch is found with that batch."""
    offset = max(entry.last, int(log.log_start_offset))
    found = log.read(offset, len(entry.data), log.log_end_offset, True)
    require(found is not None, "read", f"offset {offset} is not found")
    assert found is not None
    data = found.read()
    require(data.startswith(entry.data), "read", f"offset {offset} is not where the index leads")


def check_recovered(log: Log, history: History, lost_power: bool) -> None:
    """A log that was opened again has everything that the crash left it no reason to lose."""
    require(not log.is_offline, "offline", "the log did not come back")
    start, end = int(log.log_start_offset), int(log.log_end_offset)
    cut = history.cut
    is_same = start == history.start and end == history.end
    is_full_cut = cut is not None and cut.is_full
    is_emptied = cut is not None and start == end and start in cut.starts and not is_same
    # At the same start, the crash may have come before the first step of the truncation.
    is_emptied &= not log.producers.entries or (is_full_cut and start != history.start)
    if is_emptied:
        history.restarted_at(start)
        return
    if lost_power and start == end == history.synced == 0:
        # Not even the name of the partition was synced: it was created again.
        history.restarted_at(0)
        return
    low = history.synced if lost_power else history.written
    if cut is not None:
        low = min(low, history.start if cut.starts else cut.offset)
    highest = max((entry.last + 1 for entry in history.maybe), default=history.end)
    require(start <= end, "start", f"the log starts at {start} and ends at {end}")
    start_low = min(history.start, *cut.starts) if cut and cut.starts else history.start
    require(start_low <= start, "start", f"the log start went from {start_low} to {start}")
    require(start <= history.target, "start", f"{start} is beyond {history.target}")
    needed = history.needed(low)
    if needed:
        require(end > needed[-1].last, "missing", f"{end} to {needed[-1].last} (start {start})")
    require(end <= max(highest, start), "end", f"{end} is beyond {highest}")
    # The producers' states came from unsynced batches below the log start, or from batches that
    # compaction removed.
    is_inexact = lost_power and any(e.last >= low and e.base < start for e in history.entries)
    if cut is not None:
        is_inexact |= bool(cut.starts) or not cut.is_exact
    is_inexact |= history.is_full and start > 0
    history.recovered(start, end, lost_power)
    if is_inexact:
        adopt_producers(log, history)


def adopt_producers(log: Log, history: History) -> None:
    """Take over the log's producers where the exact states could be lost."""
    end = int(log.log_end_offset)
    if producers_of(log) != history.producers():
        check_known_producers(log, history)
        history.adopt_producers(end, producers_of(log))
    elif history.floor > end:
        # The next batches are below the former floor, and count.
        history.adopt_producers(end, producers_of(log))
