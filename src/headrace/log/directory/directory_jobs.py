"""Jobs for a worker thread: remove deleted partitions, write checkpoint files."""

import logging
import uuid

from headrace.env.files import Files
from headrace.env.rate_limited_log import RecurringProblem

DELETE_SUFFIX = "-delete"
_LOG = logging.getLogger(__name__)


def id_in_name(name: str, ending: str) -> uuid.UUID | None:
    """The id in the name of a renamed directory."""
    if not name.endswith(ending):
        return None
    try:
        return uuid.UUID(hex=name.removesuffix(ending).rpartition(".")[2])
    except ValueError:
        return None


class DeletedDirectories:
    """Renames the directories of deleted partitions, until a worker removes them."""

    def __init__(self, files: Files, parent: str) -> None:
        self._files = files
        self._parent = parent
        self.paths: list[str] = []
        """The renamed directories."""
        self.unopened: set[str] = set()
        """Directories of new partitions whose logs are not opened yet."""

    def unused_path(self, name: str, ending: str, preferred: uuid.UUID | None = None) -> str:
        """A new path for a directory, with this ending and a new id, or the `preferred` one."""
        path = self._path(name, ending, preferred or uuid.uuid4())
        return self._path(name, ending, uuid.uuid4()) if self._files.exists(path) else path

    def _path(self, name: str, ending: str, unique: uuid.UUID) -> str:
        # A file name has at most 255 bytes.
        suffix = f".{unique.hex}{ending}"
        return f"{self._parent}/{name[: 255 - len(suffix)]}{suffix}"

    def rename(self, name: str) -> None:
        self.unopened.discard(name)
        path, target = f"{self._parent}/{name}", self.unused_path(name, DELETE_SUFFIX)
        try:
            self._files.rename(path, target)
        except FileNotFoundError:
            return  # The partition was lost before the start.
        except OSError as error:
            _LOG.warning("deleted partition not removed: path=%s error=%s", path, error)
            return
        self.paths.append(target)

    def removal_job(self) -> "RemoveDirectories | None":
        """A job that removes the directories that were renamed since the last call."""
        paths, self.paths = self.paths, []
        return RemoveDirectories(self._files, self._parent, paths) if paths else None


class RemoveDirectories:
    """Removes the renamed directories of deleted partitions, in a worker.

    First syncs the new names, so that a power failure cannot restore a partly removed directory
    under its old name.
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
            _LOG.warning(
                "deleted partition not removed, retrying at the next start: path=%s error=%s",
                path,
                error,
            )


class WriteCheckpoints:
    """Writes Kafka's offset checkpoints, in a worker."""

    def __init__(
        self, files: Files, contents: list[tuple[str, bytes]], problem: RecurringProblem
    ) -> None:
        self._files = files
        self._contents = contents
        self._problem = problem
        self.is_written = False

    def run(self) -> None:
        try:
            for path, data in self._contents:
                self._files.replace_file(path, data)
            self.is_written = True
        except OSError as error:
            self._problem.log(f"checkpoints were not written: {error}")
