"""The exceptions that end a command, and their exit codes."""

import errno
import re

OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that occur only when output is written."""


_COMMAND = re.compile(r": (?:headrace|pip|python|--|spark\.|\w+Table[.(])")


def as_sentence(message: str) -> str:
    """A message with a capital letter and a full stop. A command at its end gets no full stop."""
    first = message.split(maxsplit=1)[0] if message.strip() else ""
    if first.isalpha() and first != "headrace":
        message = message[0].upper() + message[1:]
    ends_with_command = _COMMAND.search(message.rpartition(". ")[2])
    return message if ends_with_command or message.endswith((".", "?", "!")) else f"{message}."


class Failure(Exception):
    """Ends the command: a message for standard error with the next step, and an exit code."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        self.message = as_sentence(message)
        super().__init__(self.message)
        self.exit_code = exit_code
