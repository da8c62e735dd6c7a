"""Data directories of a cluster on one machine, and the conversion of a single broker's directory.

    DATA/broker-1, DATA/broker-2, ...        the data of each broker
    DATA/zookeeper-1, ...                    the data of each ZooKeeper node
    DATA/cluster.lock                        locked by the process that runs the cluster

1. A conversion first moves all files into a directory whose name no partition can have, and then
   renames this directory. The next start resumes an interrupted conversion.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.cli.failure import Failure
from headrace.cli.ready import OUTPUT_FILE, STATE_FILE
from headrace.cli.secure import DIRECTORY as SECURITY
from headrace.coordination.embedded import STORE_FILE
from headrace.env.files import DirectoryInUse, SystemFiles, lock_holder

LOCK = "cluster.lock"
_BROKER_LOCK = ".lock"
_META = "meta.properties"
_MOVING = ".becoming-a-cluster"


def broker_directory(data: Path, node_id: int) -> Path:
    return data / f"broker-{node_id}"


@contextmanager
def locked(data: Path) -> Iterator[None]:
    """Use the directory exclusively. A failed start leaves no empty directory or lock file."""
    files = SystemFiles()
    # os.path.exists returns False for a directory that cannot be read.
    is_new = not os.path.exists(data)
    has_lock = os.path.exists(data / LOCK)
    try:
        data.mkdir(parents=True, exist_ok=True)
        descriptor = files.lock(str(data / LOCK), f"{os.getpid()}\n")
    except DirectoryInUse as error:
        raise Failure(
            f"Data directory {data} is in use by process {error.holder or '?'}. Stop it with "
            "headrace down, or choose another directory with --data."
        ) from None
    except OSError as error:
        raise unusable(data, error) from None
    try:
        yield
    finally:
        if not (has_lock or _has_members(data)):
            files.remove(str(data / LOCK))
            if is_new:
                with suppress(OSError):
                    data.rmdir()
        files.close(descriptor)


def unusable(data: Path, error: OSError) -> Failure:
    return Failure(
        f"Cannot use data directory {data}: {error.strerror}. Fix that, or choose another "
        "directory with --data."
    )


@contextmanager
def writing(data: Path) -> Iterator[None]:
    """Convert an OSError to a `Failure` that names the data directory."""
    try:
        yield
    except OSError as error:
        raise unusable(data, error) from None


def running_brokers(data: Path) -> dict[Path, int]:
    """The process of each broker of the cluster that starts, runs or stops, by its directory."""
    holders = {
        directory: lock_holder(str(directory / _BROKER_LOCK))
        for directory in sorted(data.glob("broker-*"))
    }
    return {directory: pid for directory, pid in holders.items() if pid is not None}


def _has_members(data: Path) -> bool:
    """Whether the directory has data of a broker or a ZooKeeper node of a cluster."""
    return any(data.glob("broker-*")) or any(data.glob("zookeeper-*"))


def check_not_a_cluster(data: Path) -> None:
    """Reject the data of a cluster: a single broker cannot serve it."""
    try:
        is_cluster = (data / _MOVING).exists() or bool(_members(data))
    except OSError:
        return  # The broker reports the error when it opens the directory.
    if is_cluster:
        raise Failure(
            f"Data directory {data} belongs to a cluster. Start it with headrace up --brokers N, "
            "or choose another directory with --data."
        )


def convert_single_broker(data: Path, broker_count: int) -> None:
    """If this is the data directory of a single broker, convert it to that of a cluster."""
    moving = data / _MOVING
    if not moving.exists():
        if not (data / STORE_FILE).exists():
            return
        _check_not_running(data)
    node_id = known_node_id(data) or known_node_id(moving) or 1
    if not 1 <= node_id <= broker_count:
        raise Failure(
            f"Data directory {data} belongs to broker {node_id}, but the cluster has brokers 1 to "
            f"{broker_count}. Use --brokers {max(node_id, 1)} or more, or another directory."
        )
    moving.mkdir(exist_ok=True)
    for entry in sorted(data.iterdir()):
        if entry.name not in (_MOVING, LOCK, STATE_FILE, OUTPUT_FILE, SECURITY):
            entry.rename(moving / entry.name)
    moving.rename(broker_directory(data, node_id))


def _check_not_running(data: Path) -> None:
    files = SystemFiles()
    try:
        files.close(files.lock(str(data / _BROKER_LOCK), f"{os.getpid()}\n"))
    except DirectoryInUse as error:
        raise Failure(
            f"Data directory {data} is in use by process {error.holder or '?'}. Stop that broker "
            "first."
        ) from None


def store_to_copy(data: Path, broker_count: int) -> Path | None:
    """The store file of a single broker whose content is not in ZooKeeper yet."""
    for node_id in range(1, broker_count + 1):
        file = broker_directory(data, node_id) / STORE_FILE
        if file.exists():
            return file
    return None


def brokers_beyond(data: Path, broker_count: int) -> list[str]:
    """The brokers of an earlier start that this start omits."""
    ids = sorted(int(meta.parent.name.removeprefix("broker-")) for meta in _members(data))
    return [f"Broker {node_id}" for node_id in ids if node_id > broker_count]


def _members(data: Path) -> list[Path]:
    """The meta.properties of each broker of a cluster."""
    return [
        meta
        for meta in data.glob(f"broker-*/{_META}")
        if meta.parent.name.removeprefix("broker-").isdecimal()
    ]


def known_node_id(data: Path) -> int | None:
    """The id of the broker that created the data directory, so that a restart needs no option."""
    try:
        text = (data / _META).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() in ("node.id", "broker.id") and value.strip().isdigit():
            return int(value)
    return None
