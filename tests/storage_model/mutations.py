"""The rules of the log that prevent known bugs, disabled one at a time: the model must notice.

A mutation changes a few lines in a copy of the sources. `python -m tests.storage_model --mutations`
prints after how many seeds each of them is caught.
"""

from typing import NamedTuple

from tests.seeded import Change


class Mutation(NamedTuple):
    name: str
    bug: str
    """The behaviour without the rule."""
    changes: tuple[Change, ...]
    first: int = 0
    """The seed that the test begins with; the model finds some bugs in later seeds only."""
    seeds_max: int = 400
    """The model finds the bug within this many seeds."""


_RECOVERY = "headrace/log/recovery/opening.py"
_REPLACEMENT = "headrace/log/compaction/swap_in.py"
_TRUNCATION = "headrace/log/upkeep/truncation.py"
_UPKEEP = "headrace/log/upkeep/durability.py"

MUTATIONS = (
    Mutation(
        "delete-records",
        "recovery removes segments below the log start, then those that do not follow them",
        (
            Change(
                _RECOVERY,
                "        self.log_start_offset = self._read_log_start()\n",
                "        self.log_start_offset = self._read_log_start()\n"
                "        while self._is_dropped(self.segments, 0):\n"
                "            self.segments.pop(0)\n",
            ),
            Change(
                _RECOVERY,
                "if self.segments and point < self.segments[0].base_offset <= "
                "self.log_start_offset:\n",
                "if not self.path:\n",
            ),
            Change(
                _RECOVERY,
                "        if segment.base_offset <= self.log_start_offset:\n",
                "        if not self.path:\n",
            ),
        ),
    ),
    Mutation(
        "compaction-truncation",
        "a cleaned segment replaces one that was truncated and refilled in the meantime",
        (Change(_REPLACEMENT, " or log.truncation_count != self._truncation_count", ""),),
    ),
    Mutation(
        "retention-full-disk",
        "on a full disk retention deletes segments before the new log start is durable",
        (
            Change(
                _UPKEEP,
                "        durable.begin_job(_start_file_job(log))\n        return durable.job\n",
                "        retention.apply_log_start(log, durable.target_start_offset)\n",
            ),
        ),
    ),
    Mutation(
        "compaction-after-failed-job",
        "the checkpoint of a compaction omits the segment that contains the recovery point",
        (
            Change(
                _UPKEEP,
                "            active_facts.base_offset in log.segments.base_offsets\n",
                "            active_facts.base_offset in log.segments.base_offsets[-1:]\n",
            ),
            Change(
                _RECOVERY,
                "        if known is None and not (above and above[0].base_offset == point):\n",
                "        if not self.path:\n",
            ),
        ),
        first=1200,
    ),
    Mutation(
        "snapshots-unsynced",
        "producer snapshots are not synced before the segments that they summarise are deleted",
        (Change(_UPKEEP, "sync=needs_sync", "sync=False"),),
    ),
    Mutation(
        "truncation-online",
        "the log stays online after a failed step of a truncation",
        (
            Change(
                _TRUNCATION,
                "        log.go_offline(error)\n        raise\n    finally",
                "        raise\n    finally",
            ),
        ),
        first=600,
    ),
    Mutation(
        "truncation-needs-space",
        "a truncation writes its last checkpoint after it has removed records",
        (
            Change(
                _TRUNCATION,
                "        files.rename(last, path)\n",
                "        files.replace_file(path, encode_log_checkpoint(checkpoint))\n",
            ),
        ),
    ),
    Mutation(
        "truncation-unnamed",
        "a truncation writes the first checkpoint, and the directory's name is never synced",
        (
            Change(
                _TRUNCATION, "    if not durable.is_directory_durable:\n", "    if not log.path:\n"
            ),
        ),
        first=600,
    ),
)
