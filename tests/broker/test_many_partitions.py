"""Topics of many partitions: their logs are opened, and put aside, some at a time."""

from pathlib import Path

from headrace.client import Client, connect
from headrace.testing import RunningBroker

MANY = 200


def logs_of(client: Client, topic: str) -> set[int]:
    (node,) = client.describe_cluster().brokers
    (directory,) = client.describe_log_dirs(node.node_id)
    return {part.partition for part in directory.partitions if part.topic == topic}


def test_all_logs_exist_when_create_topics_responds_and_none_of_a_deleted_topic(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with RunningBroker.start(data) as broker, connect(broker.address) as client:
        client.create_topic("many", partitions=MANY)
        assert logs_of(client, "many") == set(range(MANY))
        client.create_partitions("many", 2 * MANY)
        assert logs_of(client, "many") == set(range(2 * MANY))
        client.produce("many", b"old", partition=MANY - 1)
        client.delete_topic("many")
        assert logs_of(client, "many") == set()
        # The broker is still renaming the directories of the former topic.
        client.create_topic("many", partitions=MANY)
        client.produce("many", b"new", partition=MANY - 1)
        assert [record.value for record in client.consume("many", until="end")] == [b"new"]
        broker.stop()
        names = [path.name for path in data.iterdir()]
        assert len([name for name in names if name.startswith("many-") and "." not in name]) == MANY
        assert not [name for name in names if name.endswith("-stray")]
