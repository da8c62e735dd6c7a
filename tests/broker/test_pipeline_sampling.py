"""Records that `headrace pipeline init --topic` reads to infer a schema."""

from headrace.client import connect
from headrace.pipelines.starter import sample
from headrace.testing import RunningBroker


def test_sample_has_the_first_and_the_last_records_of_each_partition(
    shared_broker: RunningBroker, new_topic: str
) -> None:
    with connect(shared_broker.address) as client:
        client.create_topic(new_topic, partitions=3)
        assert sample(client, new_topic) == []
        with client.producer() as producer:
            for number in range(100):
                for partition in (0, 1):
                    producer.send(new_topic, f"{partition}-{number}", partition=partition)
            producer.send(new_topic, None, key="deleted", partition=2)
            producer.send(new_topic, "only", partition=2)
        found = sorted(value.decode() for value in sample(client, new_topic, 12))
        assert found == ["0-0", "0-1", "0-98", "0-99", "1-0", "1-1", "1-98", "1-99", "only"]
        assert len(sample(client, new_topic)) == 201
