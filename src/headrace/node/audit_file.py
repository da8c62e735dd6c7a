"""The file of the audit log, if `headrace.audit.file` is set: it contains only JSON lines.

A file that was renamed, for example by logrotate, is created again.
"""

import os
from logging import Formatter
from logging.handlers import WatchedFileHandler

from headrace.audit import add_handler, remove_handler


class AuditFile:
    def __init__(self, path: str) -> None:
        """Raises OSError. Only the owner can read a new file."""
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        self._handler = WatchedFileHandler(path, encoding="utf-8")
        self._handler.setFormatter(Formatter("%(message)s"))
        add_handler(self._handler)

    def close(self) -> None:
        remove_handler(self._handler)
        self._handler.close()
