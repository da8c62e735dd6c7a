"""The file that tells other programs that a command is ready, and where.

It is there while the command serves; what was killed leaves it behind, with its pid.
"""

import json
import os
from contextlib import suppress

from headrace.cli.failure import Failure


def write_ready_file(path: str, address: str, **more: object) -> None:
    """All at once: whoever waits for the file finds it whole."""
    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            json.dump({"address": address, "pid": os.getpid(), **more}, file)
        os.replace(part, path)
    except OSError as error:
        raise Failure(
            f"The ready file {path} cannot be written: {error.strerror}. Choose another file with "
            "--ready-file."
        ) from None


def remove_ready_file(path: str | None) -> None:
    """If it is this process's own: another that was told the same place may serve still."""
    if path is not None:
        with suppress(OSError, ValueError, LookupError, TypeError):
            with open(path, encoding="utf-8") as file:
                is_own = json.load(file)["pid"] == os.getpid()
            if is_own:
                os.unlink(path)


def farewell(*, is_temporary: bool) -> str:
    where = "its temporary data goes with it" if is_temporary else "everything is on disk"
    return f"Headrace has stopped; {where}."
