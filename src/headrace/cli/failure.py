"""The exceptions that end a command, and their exit codes."""

import errno

OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What only writing runs into."""


class Failure(Exception):
    """One sentence for standard error that says what to do, and an exit code that is not 0."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
