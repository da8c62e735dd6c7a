"""Data directories of a cluster on one machine, and the conversion of a single broker's directory.

    DATA/broker-1, DATA/broker-2, ...        a broker's data each
    DATA/zookeeper-1, ...                    a ZooKeeper node's
    DATA/cluster.lock                        held by whoever runs it

1. A move that was interrupted goes on at the next start: everything goes into one directory with
   a name that no partition can have, and that gets its name last.
"""

import os
from pathlib import Path

from headrace.cli.failure import Failure
from headrace.cli.ready import OUTPUT_FILE, STATE_FILE
from headrace.coordination.embedded import STORE_FILE
from headrace.env.files import DirectoryInUse, SystemFiles

LOCK = "cluster.lock"
_BROKER_LOCK = ".lock"
_META = "meta.properties"
_MOVING = ".becoming-a-cluster"


def broker_directory(data: Path, node_id: int) -> Path:
    return data / f"broker-{node_id}"


def lock(data: Path) -> None:
    """Until this process ends: two of them would run ZooKeeper over the same files."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        SystemFiles().lock(str(data / LOCK), f"{os.getpid()}\n")
    except DirectoryInUse as error:
        raise Failure(
            f"{data} is in use by process {error.holder or '?'}. Stop it, or choose another "
            "directory with --data."
        ) from None
    except OSError as error:
        raise Failure(
            f"{data} cannot be used: {error.strerror}. Fix that, or choose another directory with "
            f"--data."
        ) from None


def refuse_cluster(data: Path) -> None:
    """A broker on its own cannot go on with the data of several."""
    try:
        is_cluster = (data / _MOVING).exists() or bool(_members(data))
    except OSError:
        return  # Nobody may look: the broker will say so when it fails to open its directory.
    if is_cluster:
        raise Failure(
            f"{data} contains the data of a cluster. Start it with headrace up --brokers N, or "
            "choose another directory with --data."
        )


def take_over_single(data: Path, broker_count: int) -> None:
    """If this is the data directory of a single broker, convert it to that of a cluster."""
    moving = data / _MOVING
    if not moving.exists():
        if not (data / STORE_FILE).exists():
            return
        _refuse_what_runs(data)
    node_id = known_node_id(data) or known_node_id(moving) or 1
    if not 1 <= node_id <= broker_count:
        raise Failure(
            f"{data} belongs to broker {node_id}, but the cluster has brokers 1 to {broker_count}. "
            f"Use --brokers {max(node_id, 1)} or more, or another directory."
        )
    moving.mkdir(exist_ok=True)
    for entry in sorted(data.iterdir()):
        if entry.name not in (_MOVING, LOCK, STATE_FILE, OUTPUT_FILE):
            entry.rename(moving / entry.name)
    moving.rename(broker_directory(data, node_id))


def _refuse_what_runs(data: Path) -> None:
    files = SystemFiles()
    try:
        files.close(files.lock(str(data / _BROKER_LOCK), f"{os.getpid()}\n"))
    except DirectoryInUse as error:
        raise Failure(
            f"{data} is in use by process {error.holder or '?'}. Stop that broker first."
        ) from None


def store_to_copy(data: Path, broker_count: int) -> Path | None:
    """The tree of a single broker that is not in ZooKeeper yet."""
    for node_id in range(1, broker_count + 1):
        file = broker_directory(data, node_id) / STORE_FILE
        if file.exists():
            return file
    return None


def brokers_beyond(data: Path, broker_count: int) -> list[str]:
    """Brokers that an earlier start of this cluster had, and this one does not."""
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
    """The id that a data directory was made with: whoever starts on it again need not know it."""
    try:
        text = (data / _META).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() in ("node.id", "broker.id") and value.strip().isdigit():
            return int(value)
    return None
