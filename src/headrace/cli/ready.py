"""The file that tells other programs that a command is ready, and where."""

import json
import os


def write_ready_file(path: str, address: str, **more: object) -> None:
    """All at once: whoever waits for the file finds it whole."""
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump({"address": address, "pid": os.getpid(), **more}, file)
    os.replace(part, path)
