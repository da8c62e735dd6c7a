"""Records the partitions of a data directory, outside of their directories, to detect lost ones.

Owns three files. `headrace-topic-ids` has the topic id of each partition, and is replaced with
Kafka's checkpoint files. `headrace-created` has the changes since. `headrace-lost` has the lost
partitions. Loop thread only, except for a worker that writes the checkpoints.

1. A partition is recorded after its first segment exists, and before it is served. Its row is
   removed before its directory is renamed. So if a recorded partition has no segment, another
   program removed it, and its records are lost.
2. `headrace-created` is not synced. It is valid after a kill, and ignored after a power failure.
   `headrace-topic-ids` lists only durable directories.
3. A lost partition stays lost until its segments are restored, or until it is created again. It is
   created again if another broker has all its records, or an operator accepts the loss.
"""

import contextlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping
from uuid import UUID

from headrace.env.files import Files
from headrace.log.recovery.leftovers import offset_of
from headrace.log.upkeep.checkpoints import LOG_CHECKPOINT, decode_log_checkpoint

TOPIC_IDS = "headrace-topic-ids"
CREATED = "headrace-created"
LOST = "headrace-lost"
_LOG = logging.getLogger(__name__)


class RecordedPartitions:
    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.checkpointed: dict[str, UUID] = {}
        """The content of `headrace-topic-ids`. Kafka's checkpoint files refer to these topics."""
        self.ids: dict[str, UUID] = {}
        """The topic ids of all recorded partitions, by directory name."""
        self.lost: dict[str, UUID] = {}
        """Recorded partitions that had no segment at start-up."""
        self._written_lost: dict[str, UUID] = {}
        """The content of `headrace-lost`."""
        self._fd = -1
        self._rows = 0
        """The number of rows in `headrace-created`."""
        self._pending: tuple[dict[str, UUID], dict[str, UUID], int] | None = None
        """Ids, lost partitions and covered rows of a checkpoint that might not be durable yet."""

    def read(
        self, directories: Collection[str], is_cached: bool, renamed: Collection[str] = ()
    ) -> None:
        """Read the files, and find lost partitions.

        With `is_cached`, the page cache still has all writes of the last process. `renamed` has the
        new names of directories that the broker has renamed, maybe after the last checkpoint.
        """
        self.checkpointed = read_ids(self._files, f"{self._directory}/{TOPIC_IDS}")
        self.ids = dict(self.checkpointed)
        path = f"{self._directory}/{CREATED}"
        if is_cached:
            for name, topic_id in _read_rows(self._files, path):
                self._rows += 1
                _apply_row(self.ids, name, topic_id)
        else:
            # Otherwise these rows would be valid after the next kill.
            self._files.remove(path)
            self._forget_unsynced(directories, renamed)
        for name, topic_id in self.ids.items():
            if name not in directories or (is_cached and not self._has_segments(name)):
                self.lost[name] = topic_id
        self._written_lost = read_ids(self._files, f"{self._directory}/{LOST}")
        for name, topic_id in self._written_lost.items():
            if name not in directories or not self._has_segments(name):
                self.lost[name] = topic_id
        if self.lost != self._written_lost:
            self._write_lost()

    def _forget_unsynced(self, directories: Collection[str], renamed: Collection[str]) -> None:
        """Remove the rows of partitions without segments, if a power failure explains this.

        An empty segment is not synced. Neither is the removal of the row of a renamed directory
        since the last checkpoint. If such a row stayed, the partition would be lost after the next
        kill.
        """
        for name in list(self.ids):
            if name in directories:
                is_unsynced = not self._has_segments(name)
            else:
                is_unsynced = any(each.startswith(f"{name}.") for each in renamed)
            if is_unsynced:
                self.remove(name)

    def _write_lost(self) -> None:
        """Write `headrace-lost`, because the next start might not be able to detect the loss."""
        try:
            self._files.replace_file(f"{self._directory}/{LOST}", encode_ids(self.lost))
            self._written_lost = dict(self.lost)
        except OSError as error:
            # The next checkpoint retries.
            _LOG.warning("file not written: path=%s/%s error=%s", self._directory, LOST, error)

    def _has_segments(self, name: str) -> bool:
        path = f"{self._directory}/{name}"
        infos = self._files.list_directory(path)
        if any(offset_of(info.name) >= 0 and ".log" in info.name for info in infos):
            return True
        if all(info.name != LOG_CHECKPOINT for info in infos):
            return False
        checkpoint = decode_log_checkpoint(self._files.read_file(f"{path}/{LOG_CHECKPOINT}"))
        # An interrupted truncation can have removed every segment.
        return checkpoint is not None and checkpoint.discard_from >= 0

    def add(self, name: str, topic_id: UUID) -> None:
        """Record a partition. After OSError it is not recorded and must not be served."""
        self.lost.pop(name, None)
        if self.ids.get(name) != topic_id:
            self._append(f"+{name} {topic_id}")
            self.ids[name] = topic_id

    def remove(self, name: str) -> None:
        """Remove the row of a partition, before its directory is removed."""
        self.lost.pop(name, None)
        if name not in self.ids:
            return
        try:
            self._append(f"-{name} -")
        except OSError as error:
            # The next start treats the partition as lost, and so proves nothing for the others.
            message = "deleted partition still listed: directory=%s partition=%s error=%s"
            _LOG.warning(message, self._directory, name, error)
        del self.ids[name]

    def _append(self, row: str) -> None:
        if self._fd < 0:
            self._fd = self._files.open(f"{self._directory}/{CREATED}", write=True, create=True)
        # The newline precedes the row, so that it ends an incomplete one.
        self._files.append(self._fd, [f"\n{row}".encode()])
        self._rows += 1

    def checkpoint(self, ids: dict[str, UUID]) -> list[tuple[str, bytes]]:
        """The names and contents of the files that must be replaced. Call `written` after that."""
        self._pending = ids, dict(self.lost), self._rows
        contents = []
        if ids != self.checkpointed:
            contents.append((TOPIC_IDS, encode_ids(ids)))
        if self.lost != self._written_lost:
            contents.append((LOST, encode_ids(self.lost)))
        return contents

    def written(self) -> None:
        """Remove the rows that the last checkpoint covers, because that checkpoint is durable."""
        if self._pending is None:
            return
        self.checkpointed, self._written_lost, rows = self._pending
        self._pending = None
        if self._fd < 0 or not 0 < self._rows == rows:
            return
        try:
            self._files.truncate(self._fd, 0)
            self._rows = 0
        except OSError as error:
            # The remaining rows have no effect.
            _LOG.warning("file not truncated: path=%s/%s error=%s", self._directory, CREATED, error)

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
        if self._rows == 0:
            with contextlib.suppress(OSError):
                self._files.remove(f"{self._directory}/{CREATED}")


def missing(files: Files, directory: str) -> list[str]:
    """The recorded partitions without a directory. A broker can be running."""
    before = _read_all(files, directory)
    found = {info.name for info in files.list_directory(directory) if info.is_directory}
    # The broker removes the row of a deleted partition before its directory. So a partition whose
    # row exists before and after the listing was not deleted.
    after = _read_all(files, directory)
    return sorted(name for name in before if name in after and name not in found)


def has(files: Files, directory: str, name: str) -> bool:
    """Whether a partition is recorded. A broker can be running."""
    return name in _read_all(files, directory)


def _read_all(files: Files, directory: str) -> dict[str, UUID]:
    ids = read_ids(files, f"{directory}/{TOPIC_IDS}")
    for name, topic_id in _read_rows(files, f"{directory}/{CREATED}"):
        _apply_row(ids, name, topic_id)
    return ids


def forget(files: Files, directory: str, name: str) -> None:
    """Durably remove a partition from all files. No broker may use the directory."""
    ids = _read_all(files, directory)
    ids.pop(name, None)
    lost = read_ids(files, f"{directory}/{LOST}")
    lost.pop(name, None)
    files.replace_file(f"{directory}/{LOST}", encode_ids(lost))
    files.replace_file(f"{directory}/{TOPIC_IDS}", encode_ids(ids))
    files.remove(f"{directory}/{CREATED}")
    files.sync_directory(directory)


def read_ids(files: Files, path: str) -> dict[str, UUID]:
    """The topic id of each partition directory; empty if the file is missing or damaged."""
    try:
        return {name: UUID(text) for name, text in json.loads(files.read_file(path)).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError):
        _LOG.warning("topic ids are damaged, ignoring them: file=%s", path)
        return {}


def encode_ids(ids: Mapping[str, UUID]) -> bytes:
    return json.dumps({name: str(topic_id) for name, topic_id in ids.items()}).encode()


def _read_rows(files: Files, path: str) -> Iterator[tuple[str, UUID | None]]:
    """Yield each change: a partition's name, and its topic id, or None if it was removed."""
    try:
        lines = files.read_file(path).decode(errors="replace").split("\n")
    except FileNotFoundError:
        return
    for line in lines:
        name, _, text = line[1:].partition(" ")
        if line.startswith("-") and text == "-":
            yield name, None
        elif line.startswith("+"):
            try:
                yield name, UUID(text)
            except ValueError:
                continue


def _apply_row(ids: dict[str, UUID], name: str, topic_id: UUID | None) -> None:
    if topic_id is None:
        ids.pop(name, None)
    else:
        ids[name] = topic_id
