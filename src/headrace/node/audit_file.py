"""The file of the audit log, if `headrace.audit.file` is set. It contains only JSON lines.

If the file is renamed, for example by logrotate, a new file is created.
"""

import os
from logging import Formatter
from logging.handlers import WatchedFileHandler

from headrace.audit import add_handler, remove_handler


class AuditFile:
    def __init__(self, path: str) -> None:
        """Open or create the file. Only its owner can read a new file. Raises OSError."""
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        self._handler = WatchedFileHandler(path, encoding="utf-8")
        self._handler.setFormatter(Formatter("%(message)s"))
        add_handler(self._handler)

    def close(self) -> None:
        remove_handler(self._handler)
        self._handler.close()
