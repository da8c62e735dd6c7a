"""Allow one run at a time per project: an advisory lock on a file in `.headrace/`.

1. The kernel releases the lock when the process ends, also after kill -9: no stale lock remains.
2. The lock covers this project directory. Two copies of a project that share `storage` on another
   file system are not protected from each other.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from socket import gethostname

from headrace.pipelines.project import LOCKED, Project, ProjectError


class Locked(ProjectError):
    """Another run of the project is in progress."""

    exit_code = LOCKED


@contextmanager
def run_lock(project: Project) -> Iterator[None]:
    """Hold the lock of a project; raises Locked if another process holds it."""
    project.prepare_state()
    path = project.state / "lock"
    # Python does not pass the descriptor on to Spark, so Spark cannot keep the lock.
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ProjectError(f"cannot create {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(
                f"another run of this pipeline is in progress{_holder(path)}. "
                "Run again when it has ended"
            ) from None
        except OSError as error:
            raise ProjectError(
                f"cannot lock {path}: {error.strerror}. Put the project on a file system with locks"
            ) from error
        started = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"pid": os.getpid(), "host": gethostname(), "started": started}
        # Only for the error of another run. The lock is also valid on a full disk.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(about).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(path: Path) -> str:
    """The process that holds the lock; empty if it has not written its id yet."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return f": process {about['pid']} on {about['host']}, since {about['started']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
