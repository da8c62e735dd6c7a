"""Where the partitions of a live cluster lie: by its own word, and on the disks."""

from headrace.testing.cluster import RunningCluster
from headrace.wire.codec import Message as Reply
from tests.cluster.history import Topic, wait_for


def replicas(topic: Topic) -> dict[int, list[int]]:
    return {index: state.replicas for index, state in topic.states().items()}


def directories(cluster: RunningCluster, topic: Topic) -> dict[int, set[int]]:
    """The partitions of which each broker has a directory, including those that will be deleted."""
    return {
        node: {
            int(path.name.removeprefix(f"{topic.name}-").partition(".")[0])
            for path in broker.data_dir.glob(f"{topic.name}-*")
        }
        for node, broker in cluster.brokers.items()
    }


def expected_directories(cluster: RunningCluster, topic: Topic) -> dict[int, set[int]]:
    lying = replicas(topic)
    return {node: {i for i, nodes in lying.items() if node in nodes} for node in cluster.brokers}


def wait_until_all_agree(topic: Topic) -> None:
    """Wait until all brokers return the same brokers, leaders and replicas.

    An operation is complete when the controller and the requested broker have applied it. Another
    broker can still return the state before it.
    """

    def views() -> set[str]:
        running = [each for each in topic.cluster.brokers.values() if each.is_running]
        return {_view(topic.told_by(broker)) for broker in running}

    wait_for("brokers that agree", lambda: len(views()) == 1)


def _view(told: Reply) -> str:
    parts = told["topics"][0]["partitions"]
    return repr(
        (
            told["controller_id"],
            sorted(each["node_id"] for each in told["brokers"]),
            sorted((p["partition_index"], p["leader_epoch"], p["replica_nodes"]) for p in parts),
        )
    )


def wait_until_nothing_is_left_behind(cluster: RunningCluster, topic: Topic) -> None:
    wait_for(
        "directories of just the replicas",
        lambda: directories(cluster, topic) == expected_directories(cluster, topic),
    )
