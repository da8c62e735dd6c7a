"""What a worker does in a data directory: removing what was deleted, writing checkpoints."""

import logging

from headrace.env.complaints import Complaint
from headrace.env.files import Files

_LOG = logging.getLogger(__name__)


class RemoveDirectories:
    """Removes the directories of deleted partitions, which have other names by now; for a worker.

    The names are synced first: nothing half-removed may come back under a partition's own.
    """

    def __init__(self, files: Files, parent: str, paths: list[str]) -> None:
        self._files = files
        self._parent = parent
        self.paths = paths

    def run(self) -> None:
        path = self._parent
        try:
            self._files.sync_directory(self._parent)
            for path in self.paths:
                for info in self._files.list_directory(path):
                    self._files.remove(f"{path}/{info.name}")
                self._files.remove_directory(path)
        except OSError as error:
            _LOG.warning("%s is not removed before the next start: %s", path, error)


class WriteCheckpoints:
    """Writes Kafka's offset checkpoints; for a worker."""

    def __init__(self, files: Files, contents: list[tuple[str, bytes]], trouble: Complaint) -> None:
        self._files = files
        self._contents = contents
        self._trouble = trouble

    def run(self) -> None:
        try:
            for path, data in self._contents:
                self._files.replace_file(path, data)
        except OSError as error:
            self._trouble.tell(f"checkpoints could not be written: {error}")
