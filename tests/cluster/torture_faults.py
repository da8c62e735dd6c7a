"""The faults of `tests.cluster.torture`, by name.

Each fault takes the running torture and its topic, and returns when it has happened. The torture
then waits until writes succeed, and heals: links, paused and dead brokers, disks, ZooKeeper.

1. A fault that destroys one replica's data first waits until all replicas are in sync.
"""

import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client import ClientError, TopicPartition, connect
from headrace.testing.links import ZOOKEEPER
from tests.cluster.history import Topic

if TYPE_CHECKING:
    from tests.cluster.torture import Torture

CLIENTS_MAX = 300
"""Connections of a client that exhausts a broker's file descriptors."""
SPARE_DESCRIPTORS = 10
OUTAGE_PAUSE_S_MAX = 120.0
DEADLINE_S = 300.0
"""Of a start, a stop and the next acknowledged write. A busy disk can stop ZooKeeper for 35 s."""

Fault = Callable[["Torture", Topic], None]


def kill_leader(torture: "Torture", topic: Topic) -> None:
    torture.cluster.kill(topic.leader(torture.random.randrange(topic.partitions)))


def kill_any(torture: "Torture", _topic: Topic) -> None:
    torture.cluster.kill(torture.any_broker())


def kill_all(torture: "Torture", _topic: Topic) -> None:
    torture.cluster.kill(*torture.cluster.brokers)
    torture.cluster.start_brokers(timeout_s=DEADLINE_S)


def restart_one(torture: "Torture", topic: Topic) -> None:
    topic.wait_until_in_sync()
    torture.cluster.brokers[torture.any_broker()].restart(timeout_s=DEADLINE_S)


def pause(torture: "Torture", topic: Topic) -> None:
    torture.cluster.brokers[topic.leader()].pause()


def cut_leader(torture: "Torture", topic: Topic) -> None:
    leader = topic.leader()
    torture.cluster.links.cut(leader, *torture.others(leader))


def cut_store(torture: "Torture", _topic: Topic) -> None:
    torture.cluster.links.cut(torture.any_broker(), ZOOKEEPER)


def isolate(torture: "Torture", topic: Topic) -> None:
    leader = topic.leader()
    torture.cluster.links.cut(leader, ZOOKEEPER, *torture.others(leader))


def reassign(torture: "Torture", topic: Topic) -> None:
    """Start to reassign one partition; a reassignment in progress gets a new target."""
    index = torture.random.randrange(topic.partitions)
    target = torture.random.sample(sorted(torture.cluster.brokers), 3)
    _alter_reassignments(torture, topic, {index: target})


def reassign_and_kill(torture: "Torture", topic: Topic) -> None:
    reassign(torture, topic)
    torture.cluster.kill(torture.any_broker())


def reassign_and_cancel(torture: "Torture", topic: Topic) -> None:
    reassign(torture, topic)
    _alter_reassignments(torture, topic, dict.fromkeys(range(topic.partitions)))


def _alter_reassignments(
    torture: "Torture", topic: Topic, targets: Mapping[int, Sequence[int] | None]
) -> None:
    asked = {TopicPartition(topic.name, index): nodes for index, nodes in targets.items()}
    try:
        with connect(torture.cluster.bootstrap) as client:
            client.alter_reassignments(asked)
    except ClientError as error:
        torture.say(f"reassignment rejected: {error}")


def delete_records(torture: "Torture", topic: Topic) -> None:
    """Delete some of the acknowledged records of one partition; sometimes kill its leader then."""
    index = torture.random.randrange(topic.partitions)
    offsets = torture.acknowledged_offsets(index)
    if not offsets:
        return
    before = torture.random.randrange(max(offsets) + 2)
    is_deleted = torture.deletions.request(topic, index, before)
    torture.say(f"records before {before} of partition {index}: deleted={is_deleted}")
    if torture.random.random() < 0.5:
        torture.cluster.kill(topic.leader(index))


def fill_disk(torture: "Torture", _topic: Topic) -> None:
    node = torture.any_broker()
    if node in torture.disks:
        torture.disks[node].fill()


def wipe(torture: "Torture", topic: Topic) -> None:
    """kill -9 one broker and start it with an empty data directory."""
    topic.wait_until_in_sync()
    node = torture.any_broker()
    torture.cluster.kill(node)
    clear(torture.cluster.brokers[node].data_dir)
    torture.cluster.start_brokers([node], timeout_s=DEADLINE_S)


def restore_older_copy(torture: "Torture", topic: Topic) -> None:
    """Stop one broker, copy its data, run it for some more records, then restore the copy."""
    topic.wait_until_in_sync()
    node = torture.any_broker()
    broker = torture.cluster.brokers[node]
    copy = broker.data_dir.with_name(f"{broker.data_dir.name}.copy")
    end(torture, node)
    shutil.copytree(broker.data_dir, copy)
    torture.cluster.start_brokers([node], timeout_s=DEADLINE_S)
    topic.wait_until_in_sync()
    torture.wait_for_writes()
    end(torture, node)
    clear(broker.data_dir)
    shutil.copytree(copy, broker.data_dir, dirs_exist_ok=True)
    shutil.rmtree(copy)
    torture.cluster.start_brokers([node], timeout_s=DEADLINE_S)


def full_outage(torture: "Torture", topic: Topic) -> None:
    """End all brokers and start them in any order, with pauses; sometimes wipe one of them."""
    topic.wait_until_in_sync()
    nodes = sorted(torture.cluster.brokers)
    if torture.random.random() < 0.5:
        torture.cluster.kill(*nodes)
    else:
        for node in nodes:
            torture.cluster.brokers[node].stop(timeout_s=DEADLINE_S)
    torture.random.shuffle(nodes)
    if torture.random.random() < 0.5:
        clear(torture.cluster.brokers[nodes[0]].data_dir)
        torture.say(f"data directory of broker {nodes[0]} wiped, it starts first")
    for node in nodes:
        torture.cluster.brokers[node].launch()
        time.sleep(torture.random.uniform(0, OUTAGE_PAUSE_S_MAX / len(nodes)))
    for node in nodes:
        torture.cluster.brokers[node].wait_until_ready(DEADLINE_S)


def exhaust_descriptors(torture: "Torture", topic: Topic) -> None:
    """Lower the file descriptor limit of a leader and hold more connections than it can accept."""
    broker = torture.cluster.brokers[topic.leader()]
    limits = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    in_use = len(os.listdir(f"/proc/{broker.pid}/fd"))
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (in_use + SPARE_DESCRIPTORS, limits[1]))
    clients: list[socket.socket] = []
    try:
        for _ in range(CLIENTS_MAX):
            client = socket.socket()
            client.setblocking(False)
            clients.append(client)
            client.connect_ex((broker.host, broker.port))
        time.sleep(torture.random.uniform(1, 5))
    finally:
        for client in clients:
            client.close()
        with suppress(ProcessLookupError):
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limits)


def end(torture: "Torture", node: int) -> None:
    """kill -9 or stop a broker."""
    if torture.random.random() < 0.5:
        torture.cluster.kill(node)
    else:
        torture.cluster.brokers[node].stop(timeout_s=DEADLINE_S)


def clear(directory: Path) -> None:
    """Delete the contents; the directory itself may be a mount point."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


FAULTS: dict[str, Fault] = {
    "kill -9 of a leader": kill_leader,
    "kill -9 of any broker": kill_any,
    "kill -9 of all brokers": kill_all,
    "clean restart of a broker": restart_one,
    "SIGSTOP of a leader": pause,
    "leader cut off from its followers": cut_leader,
    "broker cut off from ZooKeeper": cut_store,
    "leader cut off from brokers and ZooKeeper": isolate,
    "reassignment": reassign,
    "reassignment, then kill -9 of any broker": reassign_and_kill,
    "reassignment, then cancellation": reassign_and_cancel,
    "DeleteRecords, half of them with kill -9 of the leader": delete_records,
    "full disk on one broker": fill_disk,
    "data directory wiped": wipe,
    "data directory restored from an older copy": restore_older_copy,
    "full outage, restarts in any order with pauses": full_outage,
    "file descriptors of a leader exhausted by clients": exhaust_descriptors,
}
