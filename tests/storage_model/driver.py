"""Drives a real log on a simulated disk as a broker does, and reports each operation to the model.

This part opens the log, runs its jobs, restarts it after a crash and compares it with the model.
The operations of a trace are in `operations`.
"""

import copy
import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from headrace.log.directory.directory_lock import DirectoryError
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.log import Log
from headrace.log.recovery.opening import read_log_checkpoint
from headrace.log.state import LogSettings
from headrace.log.upkeep.jobs import FULL, LogJob
from headrace.model.errors import ApiError
from headrace.testing.disk import SimulatedCrash, SimulatedFiles
from tests.storage.log_scenario import PARTITION, ManualClock, topic_config
from tests.storage_model import checks
from tests.storage_model.compaction import Compactor
from tests.storage_model.history import History, require

ERRNOS = (errno.ENOSPC, errno.EMFILE, errno.EIO)
_LIGHT = {"wait", "epoch", "commit", "fault", "step", "wrong", "retry", "tick", "full", "relief"}
"""Operations after which the records need not be read."""


class Setup(NamedTuple):
    """The settings of one run."""

    compacts: int = 0
    segment_bytes: int = 600
    segment_ms: int = 1000
    flush_messages: int = 1 << 40
    retention_bytes: int = -1
    retention_ms: int = -1
    open_max: int = 512
    producers: int = 3
    keys: int = 3
    lags: int = 0
    """Whether the high watermark moves by its own operation only."""


@dataclass
class Counts:
    """How much a run has done, for the report."""

    operations: int = 0
    kills: int = 0
    power_losses: int = 0
    disk_errors: int = 0
    compactions: int = 0
    truncations: int = 0

    def add(self, other: "Counts") -> None:
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

    def __str__(self) -> str:
        counts = vars(self).items()
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts)


class Driver:
    def __init__(self, setup: Setup, seed: int = 0) -> None:
        self.setup = setup
        self.clock = ManualClock()
        self.files = SimulatedFiles(seed)
        self.config = topic_config(
            segment_bytes=setup.segment_bytes,
            segment_ms=setup.segment_ms,
            index_interval_bytes=90,
            flush_messages=setup.flush_messages,
            retention_bytes=setup.retention_bytes,
            retention_ms=setup.retention_ms,
            compacts=bool(setup.compacts),
            deletes=setup.compacts != 1,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=500,
        )
        self.history = History()
        self.counts = Counts()
        self.compactor = Compactor(self)
        self.topic = 1
        self.crash: tuple[bool, int] = (False, 0)
        """The next crash: whether it is a power loss, and its seed."""
        self.pending: tuple[LogJob, Callable[[], None]] | None = None
        self._has_run = False
        self.failures_seen = 0
        self.was_clean: bool | None = None
        self.epoch = 0
        self._open()

    # Running

    def operate(self, name: str, a: int, b: int) -> None:
        raise NotImplementedError

    def run(self, name: str, a: int, b: int) -> None:
        """One operation of a trace; then the log and the model must agree."""
        self.counts.operations += 1
        self.clock.advance(3)
        self.files.wall_ms = self.clock.now_ms
        try:
            self.operate(name, a, b)
            self.start_job()
        except SimulatedCrash:
            self.recover(*self.crash)
        self.check_failures()
        self.check(is_full=name not in _LIGHT)

    def finish(self, seed: int) -> None:
        """Restarts after a kill and after several power losses; then the log can be written."""
        for name in ("flush", "kill", "append", "flush")[seed % 2 :]:
            self.run(name, 0, seed)
        for n in range(1, 4):
            files, history = self.files, self.history.copy()
            self.recover(True, seed + n)
            self.files, self.history = files, history
        for name in ("power", "append", "restart"):
            self.run(name, 0, seed)

    def check(self, *, is_full: bool) -> None:
        limits = self.files.open_max, self.files.capacity
        self.files.open_max = self.files.capacity = None
        if not self.log.is_offline:
            checks.check_numbers(self.log, self.history)
            checks.check_producers(self.log, self.history)
            if is_full:
                checks.check_content(self.log, self.history)
        self.files.open_max, self.files.capacity = limits

    def check_failures(self) -> None:
        """After a failed sync of a log file, the log rejects appends."""
        if self._has_run and self.pending is not None:
            # The log notices it when the job is reported as done.
            return
        failed = self.files.failed[self.failures_seen :]
        self.failures_seen = len(self.files.failed)
        self.counts.disk_errors += len(failed)
        if any(each.startswith("sync /") and each.endswith(".log") for each in failed):
            require(self.log.is_offline, "sync", f"the log is online after {failed}")

    def observe(self) -> None:
        """Record the offsets that the log returns: they must never decrease later."""
        log, history = self.log, self.history
        history.synced = max(history.synced, int(log.durable.synced_offset))
        history.target = max(history.target, int(log.durable.target_start_offset))
        start = int(log.log_start_offset)
        require(start >= history.start, "start", f"it went from {history.start} to {start}")
        require(start <= history.target, "start", f"{start} is beyond {history.target}")
        history.start = start
        # On a full disk, retention deletes segments without a snapshot, so sequences are lost.
        history.is_full |= log.durable.job_errno in FULL

    # Jobs

    def start_job(self) -> None:
        log = self.log
        if log.durable.is_job_requested and log.durable.job is None and not log.is_offline:
            self.start_next_job()

    def start_next_job(self) -> None:
        job = self.log.next_job(self.clock.now_ms)
        if job is not None:
            self.submit(job, lambda: self._job_done(job))

    def submit(self, job: LogJob, then: Callable[[], None]) -> None:
        assert self.pending is None
        self.pending, self._has_run = (job, then), False

    def _job_done(self, job: LogJob) -> None:
        self.log.finish_job(job)
        self.observe()
        self.start_job()

    def step(self) -> bool:
        """Run the job in progress, or report it as done; False if none is in progress."""
        if self.pending is None:
            return False
        job, then = self.pending
        if not self._has_run:
            job.run()
            self._has_run = True
        else:
            self.pending = None
            then()
        return True

    def finish_jobs(self) -> None:
        count = 0
        while self.step():
            count += 1
            require(count < 100, "jobs", "the log has no end of jobs")

    # Starting

    def _open(self) -> None:
        files = self.files
        settings = LogSettings(checkpoint_bytes=150)
        self.directory = LogDirectory("/data", files, self.clock, settings, self.setup.open_max)
        self.directory.open()
        self.epoch += 1
        self.directory.registered(self.epoch)
        wanted = {PARTITION: (UUID(int=self.topic), self.config)}
        self.directory.load(wanted, only_copies=wanted)
        self.directory.claim("cluster", 1)
        self.create()

    def create(self) -> None:
        topic_id = UUID(int=self.topic)
        self.log: Log = self.directory.create(PARTITION, topic_id, self.config, is_only_copy=True)

    def check_removal(self, *, is_whole: bool) -> None:
        """On a copy of the disk: a recorded partition whose segments are removed is offline."""
        files = copy.deepcopy(self.files.killed())
        path = f"/data/{PARTITION}"
        before = LogDirectory("/data", files, self.clock)
        before.open()
        if before.kept_epoch < 0 or str(PARTITION) not in before.recorded.ids:
            return  # No proof, or the crash came before the partition was recorded.
        if not is_whole and not before.proof.incarnation.is_cached:
            return  # After a clean stop, only the checkpoint shows a missing segment.
        for info in files.list_directory(path):
            if is_whole or ".log" in info.name:
                files.remove(f"{path}/{info.name}")
        if is_whole:
            files.remove_directory(path)
        checkpoint = None if is_whole else read_log_checkpoint(files, path)
        if checkpoint is not None and checkpoint.discard_from >= 0:
            return  # A truncation was in progress, and could have removed them.
        after = LogDirectory("/data", files.killed(), self.clock)
        after.open()
        require(after.kept_epoch < 0, "removal", "the removal of a partition is not noticed")
        topic_id = before.recorded.ids[str(PARTITION)]
        after.load({PARTITION: (topic_id, self.config)}, only_copies={PARTITION})
        log = after.create(PARTITION, topic_id, self.config, is_only_copy=True)
        require(log.is_offline, "removal", "a log without its segments is online")

    def recover(self, lost_power: bool, seed: int) -> None:
        """Open what the crash left; start-up itself can crash, and then is repeated."""
        self._next_disk(lost_power, seed)
        if not lost_power and seed % 4 == 1:
            self.check_removal(is_whole=seed % 8 == 1)
        again = seed // 10
        if again % 3 == 1:
            self.files.crash_at = 1 + again % 7
        elif again % 3 == 2:
            self.files.fail_at[1 + again % 11] = ERRNOS[seed % len(ERRNOS)]
        self.was_clean = None
        try:
            self._open()
            self.was_clean = self.directory.proof.was_clean
        except (SimulatedCrash, OSError, ApiError, DirectoryError) as error:
            second = isinstance(error, SimulatedCrash) and again % 2 == 1
            lost_power = lost_power or second
            self._next_disk(second, seed + 1)
            self._open()
        if self.files.failed and self.log.is_offline:
            # Start-up met the error, and the log stays offline until the next start.
            self._next_disk(False, seed)
            self._open()
        self.files.crash_at = -1
        self.files.fail_at.clear()
        checks.check_recovered(self.log, self.history, lost_power)
        self.check(is_full=True)
        self.history.cleaning_ended()
        if seed % 2:
            # Recovery is repeatable: opened once more, the log is the same.
            self._next_disk(False, seed)
            self._open()
            checks.check_recovered(self.log, self.history, False)
            self.check(is_full=True)
        self.observe()

    def _next_disk(self, lost_power: bool, seed: int) -> None:
        self.counts.kills += not lost_power
        self.counts.power_losses += lost_power
        self.compactor.forget()
        self.pending = None
        self.files.capacity = None
        self.files = self.files.power_lost(seed) if lost_power else self.files.killed()
        self.files.random.seed(seed)
        self.failures_seen = 0
