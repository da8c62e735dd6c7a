"""The file that tells other programs that a command is ready, and where."""

import json
import os

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
            f"The ready file {path} cannot be written: {error.strerror}. Choose another place with "
            "--ready-file."
        ) from None


def farewell(*, is_temporary: bool) -> str:
    where = "its temporary data goes with it" if is_temporary else "everything is on disk"
    return f"Headrace has stopped; {where}."
