"""The lock of a data directory, which one process holds.

1. A start that fails leaves no trace: it removes the files and the directory that it has created,
   unless a broker has used the directory before.
"""

import os
from contextlib import suppress

from headrace.env.files import DirectoryInUse, Files
from headrace.log.upkeep import checkpoints


class DirectoryError(Exception):
    """The data directory cannot be used; the message contains the next step."""


class DirectoryLock:
    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self.fd = -1
        """The locked file; -1 if it is not locked."""
        self._entries_before: set[str] | None = None
        """The entries before this start; None if the directory did not exist."""

    def acquire(self) -> None:
        """Create the directory if it does not exist, and lock it. Raises DirectoryError."""
        try:
            if self._files.exists(self._path):
                entries = self._files.list_directory(self._path)
                self._entries_before = {each.name for each in entries}
            else:
                self._files.make_directory(self._path)
                self._files.sync_directory(os.path.dirname(self._path))
            path = f"{self._path}/{checkpoints.LOCK}"
            self.fd = self._files.lock(path, f"{os.getpid()}\n")
        except DirectoryInUse as error:
            process = f"process {error.holder}" if error.holder else "another process"
            raise DirectoryError(
                f"Data directory {self._path} is in use by {process}. Stop it with headrace down, "
                "or choose another directory with --data or log.dirs."
            ) from None
        except OSError as error:
            raise DirectoryError(
                f"Cannot use data directory {self._path}: {error.strerror}. Fix that, or choose "
                "another directory with --data or log.dirs."
            ) from None

    def release(self) -> None:
        if self.fd >= 0:
            self._files.close(self.fd)
            self.fd = -1

    def abandon(self, is_new: bool) -> None:
        """Release the lock after a failed start.

        Removes the new files if the directory `is_new`: no broker has used it before.
        """
        if self.fd >= 0 and is_new:
            with suppress(OSError):
                self._remove_new_files()
        self.release()

    def _remove_new_files(self) -> None:
        entries = self._files.list_directory(self._path)
        if any(each.is_directory for each in entries):
            return
        before = self._entries_before or set()
        for name in (each.name for each in entries if each.name not in before):
            self._files.remove(f"{self._path}/{name}")
        if self._entries_before is None:
            self._files.remove_directory(self._path)
