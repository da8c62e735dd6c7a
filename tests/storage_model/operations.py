"""The operations of a trace: calls of a broker to its log, and faults.

Every operation takes two numbers and interprets them by the state of the log, so any part of a
trace is a trace. An operation that is not possible at the moment does nothing.
"""

from collections.abc import Callable

from headrace.log.upkeep.jobs import PASSING
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import Batch, read_batch
from headrace.record.build import NewRecord, build_batch
from headrace.record.decode import read_records
from headrace.testing.disk import SimulatedCrash
from tests.storage.log_scenario import PARTITION
from tests.storage_model import checks
from tests.storage_model.driver import ERRNOS, Driver, Setup
from tests.storage_model.history import Cut, Entry, History, StoredRecord, require

_HOLE = 1 << 31


class Operations(Driver):
    def __init__(self, setup: Setup) -> None:
        self._serial = 0
        super().__init__(setup)

    def operate(self, name: str, a: int, b: int) -> None:
        getattr(self, f"do_{name}")(a, b)

    # Jobs

    def do_step(self, _a: int, _b: int) -> None:
        self.step()

    def do_flush(self, _a: int, _b: int) -> None:
        self.finish_jobs()

    def do_tick(self, a: int, _b: int) -> None:
        self.clock.advance(a % 20 * 100)
        for log in self.directory.logs_with_due_jobs(self.clock.now_ms):
            if log.durable.job is None and self.pending is None:
                self.start_next_job()

    def do_sync(self, _a: int, _b: int) -> None:
        """A checkpoint of everything, as a large write or a stop would ask for."""
        self.log.durable.request_checkpoint()
        if self.pending is None and not self.log.is_offline:
            self.start_next_job()

    def do_checkpoints(self, _a: int, _b: int) -> None:
        self.directory.checkpoint_job({PARTITION: self.history.high_watermark}).run()

    # Appending

    def do_append(self, a: int, b: int) -> None:
        """One to three batches in one write; producers are idempotent or plain."""
        self._write([self._new_batch(a + n, b + n) for n in range(1 + b % 3)])

    def do_wait(self, a: int, _b: int) -> None:
        self.clock.advance(a % 4 * 400)

    def do_epoch(self, _a: int, _b: int) -> None:
        self.history.leader_epoch += 1

    def do_bump(self, a: int, b: int) -> None:
        """A producer continues with its next epoch."""
        self._write([self._new_batch(a, b, bump=1)])

    def do_commit(self, a: int, _b: int) -> None:
        low, high = self.history.high_watermark, self.history.written
        self.history.high_watermark = high if a % 2 else low + (high - low) * (a % 10) // 10

    def do_retry(self, a: int, b: int) -> None:
        """A producer repeats one of its last batches: it must get the offset of the first time."""
        known = self.history.last_batches(100 + a % self.setup.producers)
        if not known or self.log.is_offline:
            return
        entry = known[b % len(known)]
        again = self._frame(entry.producer, entry.last - entry.base + 1, b)
        offset = int(self.log.stage(_batch(again), self._leader_epoch(), self.clock.now_ms))
        require(offset == entry.base, "retry", f"batch {entry.base} is accepted again at {offset}")

    def do_wrong(self, a: int, b: int) -> None:
        """A batch with a sequence that does not follow, or of an old epoch, is rejected."""
        producer_id = 100 + a % self.setup.producers
        known = self.history.producers().get(producer_id)
        if known is None or self.log.is_offline:
            return
        last = known[1][0][0] if known[1] else -1
        producer = (producer_id, known[0], last + 2 + b % 3)
        if b % 2 and known[0] > 0:
            producer = (producer_id, known[0] - 1, last + 1)
        try:
            frame = self._frame(producer, 1, b)
            self.log.stage(_batch(frame), self._leader_epoch(), self.clock.now_ms)
        except ApiError as error:
            expected = (
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                ErrorCode.INVALID_PRODUCER_EPOCH,
            )
            require(error.code in expected, "rejected", f"for another reason: {error}")
            return
        require(False, "sequence", f"{producer} is accepted after {known}")

    def do_replicate(self, a: int, b: int) -> None:
        """A leader's batches, which can leave offsets out."""
        gap = 0
        if self.setup.compacts and a % 4 == 0:
            gap = _HOLE if b % 40 == 7 and self.history.entries else b % 5
            if gap == _HOLE:
                self.finish_jobs()
        self._write([self._new_batch(a + n, b + n) for n in range(1 + b % 2)], gap)

    def _new_batch(self, a: int, b: int, bump: int = 0) -> tuple[tuple[int, int, int], int, int]:
        """Who sends a batch, with how many records, of which keys."""
        which = a % (self.setup.producers + 1)
        producer = (-1, -1, -1)
        if which or bump:
            producer = (100 + a % self.setup.producers, bump, -1)
        return producer, 1 + b % 3, b

    def _leader_epoch(self) -> int:
        return max(self.history.leader_epoch, int(self.log.epochs.latest()))

    def _frame(self, producer: tuple[int, int, int], count: int, b: int) -> bytes:
        records = []
        for n in range(count):
            self._serial += 1
            key = b"k%d" % ((b + n) % self.setup.keys)
            value = None if self.setup.compacts and b % 11 == 5 else b"v%d" % self._serial
            records.append(NewRecord(key, value, self.clock.now_ms))
        producer_id, epoch, sequence = producer
        return build_batch(
            records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )

    def _write(
        self, planned: list[tuple[tuple[int, int, int], int, int]], gap: int | None = None
    ) -> None:
        """Stage batches and write them; afterwards the model has those that the log has."""
        log, history = self.log, self.history
        if log.is_offline or log.is_closed:
            return
        staged: list[Entry] = []
        epoch = self._leader_epoch()
        table = history.producers()
        history.maybe = staged
        if gap == _HOLE and log.log_start_offset == log.log_end_offset:
            # No record is left below the hole: the log starts with the batch.
            history.target = int(log.log_end_offset) + gap
        failure: ApiError | None = None
        try:
            for (producer_id, bump, _), count, b in planned:
                producer = (producer_id, -1, -1)
                if producer_id >= 0:
                    known, spans = table.get(producer_id, (0, ()))
                    sequence = spans[0][0] + 1 if spans and not bump else 0
                    producer = (producer_id, known + bump, sequence)
                frame = self._frame(producer, count, b)
                entry = self._entry(frame, int(log.log_end_offset) + (gap or 0), epoch, producer)
                staged.append(entry)
                if gap is None:
                    offset = int(log.stage(_batch(frame), epoch, self.clock.now_ms))
                    require(offset == entry.base, "end", f"{entry.base} was given {offset}")
                else:
                    log.stage_replica(_batch(entry.data), self.clock.now_ms)
                table = history.producers()
        except ApiError as error:
            failure = error
        try:
            log.write(self.clock.now_ms)
        except ApiError as error:
            failure = error
        self._written(staged, failure)

    def _written(self, staged: list[Entry], failure: ApiError | None) -> None:
        log, history = self.log, self.history
        if failure is not None:
            expected = failure.code is ErrorCode.KAFKA_STORAGE_ERROR
            require(expected, "rejected", f"a valid batch: {failure}")
            require(bool(self.files.failed) or self._is_short(), "rejected", str(failure))
        end = int(log.log_end_offset)
        history.append(entry for entry in staged if entry.last < end)
        if failure is not None and history.end < end <= staged[-1].base:
            # A segment began beyond a hole, and then had no batch.
            history.end = history.written = end
        require(failure is not None or not staged or staged[-1].last < end, "end", "not written")
        history.maybe = [e for e in staged if e.last >= end] if log.is_offline else []
        if not self.setup.lags:
            history.high_watermark = history.written

    def _is_short(self) -> bool:
        return self.files.capacity is not None or self.files.open_max is not None

    def _entry(self, frame: bytes, base: int, epoch: int, producer: tuple[int, int, int]) -> Entry:
        batch = _batch(frame)
        data = batch.prefix(base, epoch) + frame[16:]
        last = base + int(batch.last_offset_delta)
        records = tuple(
            StoredRecord(each.offset, each.key or b"", each.value)
            for each in read_records(_batch(data))
        )
        return Entry(base, last, epoch, producer, self.clock.now_ms, records, data)

    # Removing

    def do_delete(self, a: int, b: int) -> None:
        log, history = self.log, self.history
        if log.is_offline:
            return
        low, high = history.start, history.high_watermark
        before = high if a % 2 else low + (high - low) * (b % 10) // 10
        if before <= high:
            log.delete_records(before, high)
            history.target = max(history.target, before)

    def do_retention(self, a: int, _b: int) -> None:
        self.clock.advance(a % 3 * 1000)
        before = int(self.log.durable.target_start_offset)
        self.directory.apply_retention({PARTITION: self.history.high_watermark})
        target = int(self.log.durable.target_start_offset)
        require(
            target == before or target <= self.history.high_watermark,
            "retention",
            f"{target} is beyond the high watermark {self.history.high_watermark}",
        )
        self.history.target = max(self.history.target, target)

    def do_truncate(self, a: int, b: int) -> None:
        log, history = self.log, self.history
        self.finish_jobs()
        if log.is_offline or log.durable.job is not None:
            return
        start, end = int(log.log_start_offset), int(log.log_end_offset)
        choices = (
            start,
            end - 1 - b % 3,
            int(log.segments.base_offsets[-1]),
            int(log.segments.base_offsets[-1]) - 1 - b % 3,
            start + (end - start) * (b % 20) // 20,
            history.high_watermark,
        )
        target = min(max(choices[a % len(choices)], start), end)
        if target < end:
            self._maybe_fault(b)
            self.cut(target, lambda: log.truncate_to(target, self.clock.now_ms))

    def do_replace(self, a: int, b: int) -> None:
        """Start again at an offset: beyond the end, below the start, or at the start."""
        log = self.log
        self.finish_jobs()
        if log.is_offline or log.durable.job is not None:
            return
        start, end = int(log.log_start_offset), int(log.log_end_offset)
        target = (end + 1 + b % 9, max(start - 1 - b % 4, 0), start)[a % 3]
        self._maybe_fault(b)
        self.cut(
            target, lambda: log.truncate_fully_and_start_at(target, self.clock.now_ms), is_full=True
        )

    def cut(self, target: int, act: Callable[[], None], *, is_full: bool = False) -> None:
        log, history = self.log, self.history
        self.check(is_full=True)
        low = self._cut_offset(target)
        # Sequences of batches that compaction removed are only in snapshots, and upkeep removes
        # snapshots inside of a segment.
        segment = max((base for base in log.segments.base_offsets if base < low), default=0)
        is_cleaned = low <= history.cleaned_end > 0 or segment < history.cleaned_end
        is_exact = low >= history.floor and not is_cleaned and not history.is_full
        starts: tuple[int, ...] = ()
        if is_full:
            starts = (target,)
        elif target <= log.segments.base_offsets[0] or history.kept_end(low) <= history.start:
            # No record is left. A batch is removed completely, also if the log starts inside it.
            starts = (target, low, history.start)
        history.cut = Cut(low, starts, is_full, is_exact)
        self.counts.truncations += 1
        for attempt in range(2):
            try:
                act()
                break
            except (OSError, ApiError) as error:
                self._cut_failed(error, attempt)
            finally:
                if self.files.exhausted_from >= 0:
                    self.files.exhausted_from = -1
                    self.do_relief(0, 0)
            if log.is_offline:
                return
        end = int(log.log_end_offset)
        if is_full or (starts and log.segments.base_offsets == [end] and not log.producers.entries):
            require(end in starts, "end", f"the log was emptied at {starts} and ends at {end}")
            history.restarted_at(end)
        else:
            low = history.kept_end(low)
            require(low <= end <= target, "end", f"the log was cut at {target} and ends at {end}")
            history.truncated(end)
            if not is_exact:
                checks.adopt_producers(log, history)
        self.observe()

    def _maybe_fault(self, b: int) -> None:
        """Let a truncation fail, or run short of space and descriptors: otherwise that is rare."""
        if b % 4 == 3:
            self.do_fault(b // 4, b // 7)
        elif b % 4 == 2:
            self.files.exhausted_from = self.files.operations + 1 + b // 4 % 20

    def _cut_failed(self, error: OSError | ApiError, attempt: int) -> None:
        """As a follower does: it tries again, unless the disk is broken."""
        if isinstance(error, OSError):
            if error.errno not in PASSING:
                self.log.go_offline(error)
            elif len(self.files.failed) == self.failures_seen:
                message = f"a shortage took the log offline: {error!r}"
                require(not self.log.is_offline, "truncation", message)
        self.check_failures()
        self.files.capacity = self.files.open_max = None
        self.files.fail_at.clear()
        may_fail = self.log.is_offline or attempt == 0
        require(may_fail, "truncation", f"it fails a second time: {error!r}")

    def _cut_offset(self, target: int) -> int:
        """A batch is removed completely."""
        for entry in self.history.entries:
            if entry.base < target <= entry.last:
                return entry.base
        return target

    # Compaction

    def do_clean(self, a: int, _b: int) -> None:
        for _ in range(1 + a % 4):
            self.compactor.step()

    # Faults

    def do_fault(self, a: int, b: int) -> None:
        """An operation on the disk will fail, once."""
        self.files.fail_at[self.files.operations + 1 + a % 14] = ERRNOS[b % len(ERRNOS)]

    def do_full(self, a: int, _b: int) -> None:
        self.files.capacity = self.files.used_bytes() + a % 10 * 60

    def do_descriptors(self, a: int, _b: int) -> None:
        self.files.open_max = self.files.open_count() + a % 3

    def do_relief(self, _a: int, _b: int) -> None:
        self.files.capacity = self.files.open_max = None

    def do_kill(self, a: int, b: int) -> None:
        self._crash_after(a, lost_power=False, seed=b)

    def do_power(self, a: int, b: int) -> None:
        self._crash_after(a, lost_power=True, seed=b)

    def _crash_after(self, count: int, *, lost_power: bool, seed: int) -> None:
        self.crash = (lost_power, seed)
        self.files.random.seed(seed)
        if count == 0:
            raise SimulatedCrash
        self.files.crash_at = self.files.operations + count

    def do_restart(self, _a: int, b: int) -> None:
        """A clean stop, and another start."""
        self.compactor.stop()
        self.finish_jobs()
        is_clean = self.directory.close({PARTITION: self.history.high_watermark}, 7)
        if is_clean:
            self.history.synced = self.history.written
        self.crash = (False, b)
        self.files.crash_at = -1
        is_offline = self.log.is_offline
        require(not (is_clean and is_offline), "stop", "a clean stop of a log that is offline")
        self.recover(lost_power=bool(is_clean and b % 3 == 2), seed=b)
        require(self.was_clean is not False or not is_clean, "stop", "a clean stop is not known")
        require(not (self.was_clean and is_offline), "stop", "it counts as clean")

    def do_recreate(self, _a: int, _b: int) -> None:
        """The topic is deleted, and another one of that name is created."""
        self.compactor.forget()
        self.pending = None
        self.failures_seen = len(self.files.failed)
        self.directory.delete(PARTITION)
        self.topic += 1
        self.history = History()
        try:
            self.create()
        except ApiError:
            self.files.fail_at.clear()
            self.do_relief(0, 0)
            self.create()
        removal = self.directory.removal_job()
        if removal is not None:
            removal.run()


def _batch(frame: bytes) -> Batch:
    return read_batch(frame, 0, len(frame), False)
