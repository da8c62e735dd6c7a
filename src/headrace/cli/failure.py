"""The exceptions that end a command, and their exit codes."""

import errno
import re

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that occur only when output is written."""


_COMMAND = re.compile(r": (?:headrace|pip|python|--|spark\.|\w+Table[.(])")


def as_sentence(message: str) -> str:
    """The message of an exception, with a capital letter. Names such as num.partitions stay."""
    first = message.split(maxsplit=1)[0] if message.strip() else ""
    is_word = first.isalpha() and first != "headrace"
    return message[0].upper() + message[1:] if is_word else message


def with_full_stop(message: str) -> str:
    """The message with a full stop, unless it ends with a command to copy or a stack trace."""
    ends_with_command = _COMMAND.search(message.rpartition(". ")[2])
    is_complete = "\n" in message or message.endswith((".", "?", "!"))
    return message if ends_with_command or is_complete else f"{message}."


class Failure(Exception):
    """Ends the command: a message for standard error with the next step, and an exit code."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        self.message = with_full_stop(message)
        super().__init__(self.message)
        self.exit_code = exit_code
