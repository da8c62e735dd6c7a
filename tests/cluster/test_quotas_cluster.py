"""Quotas in a cluster on a real ZooKeeper: of users, on all brokers, with another controller."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

import headrace.client
from headrace.client import NewTopic
from headrace.model.errors import ErrorCode
from headrace.model.quotas import (
    CLIENT_ID,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_RECORD_RATE,
    USER,
)
from headrace.wire.apis import CREATE_TOPICS, METADATA
from tests.broker.raw import PRODUCE, PRODUCE_VERSION, RawConnection, eventually, one_batch
from tests.cluster.test_sasl_cluster import NODES, SecuredCluster, log_in, stored


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    secured = SecuredCluster(tmp_path_factory.mktemp("quotas"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    for name in ("alice", "bob"):
        secured.alter(UserScramCredentialUpsertion(name, info, b"secret"))
    yield secured
    secured.cluster.close()


@pytest.fixture
def client(secured: SecuredCluster) -> Iterator[headrace.client.Client]:
    with headrace.client.connect(",".join(secured.open.values()), client_id="admin") as admin:
        yield admin
        for each in admin.list_quotas():
            admin.alter_quotas(each.entity, dict.fromkeys(each.limits))


def throttle_ms(secured: SecuredCluster, node: int, user: str, topic: str) -> int:
    """The throttle time of a user's first request to a broker, which leads partition node-1."""
    with secured.connect(secured.secured[node]) as connection:
        assert log_in(connection, user, "secret") == 0
        records = one_batch(*[b"x"] * 2000)
        connection.send(connection.produce_frame(topic, records, partition=node - 1))
        reply = connection.read_answer(PRODUCE, PRODUCE_VERSION)
        assert reply["responses"][0]["partition_responses"][0]["error_code"] == 0
        return int(reply["throttle_time_ms"])


def test_quota_of_a_user_limits_the_user_on_every_broker(
    secured: SecuredCluster, client: headrace.client.Client
) -> None:
    assignment = {node - 1: [node] for node in NODES}
    client.create_topics([NewTopic("limited", assignment=assignment)])
    client.alter_quotas({USER: "alice"}, {PRODUCER_RECORD_RATE: 1.0})
    client.alter_quotas({USER: "bob", CLIENT_ID: "raw"}, {PRODUCER_RECORD_RATE: 1e6})
    user = json.loads(stored(secured, "/config/users/alice"))["config"]
    assert set(user) == {"SCRAM-SHA-256", "producer_record_rate"}
    assert json.loads(stored(secured, "/config/users/bob/clients/raw"))["config"] == {
        "producer_record_rate": "1000000"
    }
    for node in NODES:
        with headrace.client.connect(secured.open[node], client_id="admin") as one:
            eventually("the broker has both quotas", lambda one=one: len(one.list_quotas()) == 2)  # type: ignore[misc]
        assert throttle_ms(secured, node, "alice", "limited") > 1_000_000
        assert throttle_ms(secured, node, "bob", "limited") == 0


def create(connection: RawConnection, name: str, partitions: int) -> tuple[int, int]:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    reply = connection.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 30_000})
    return int(reply["topics"][0]["error_code"]), int(reply["throttle_time_ms"])


def test_controller_counts_forwarded_changes_and_the_receiving_broker_waits(
    secured: SecuredCluster, client: headrace.client.Client
) -> None:
    controller = client.describe_cluster().controller_id
    others = [node for node in NODES if node != controller]
    client.alter_quotas({CLIENT_ID: "raw"}, {CONTROLLER_MUTATION_RATE: 0.1})
    with secured.connect(secured.open[others[0]]) as one:
        assert create(one, "mutation-1", 100) == (0, 0)
    with secured.connect(secured.open[others[1]]) as other:
        code, wait_ms = create(other, "mutation-2", 1)
        assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert wait_ms > 100_000
        # Not read for that time, until the quota is deleted.
        other.send(other.frame(METADATA, 8, {"topics": []}))
        client.alter_quotas({CLIENT_ID: "raw"}, {CONTROLLER_MUTATION_RATE: None})
        other.read_answer(METADATA, 8)
        assert create(other, "mutation-2", 1)[0] == 0


def test_next_controller_keeps_and_changes_quotas(
    secured: SecuredCluster, client: headrace.client.Client
) -> None:
    client.alter_quotas({USER: "alice", CLIENT_ID: None}, {PRODUCER_RECORD_RATE: 5.0})
    former = client.describe_cluster().controller_id
    secured.cluster.kill(former)
    client.alter_quotas({USER: "alice", CLIENT_ID: None}, {PRODUCER_RECORD_RATE: 6.0})
    secured.cluster.restart(former)
    with headrace.client.connect(secured.open[former], client_id="admin") as returned:

        def limits() -> list[object]:
            return [dict(each.limits) for each in returned.list_quotas()]

        eventually("the broker has the quota", lambda: limits() == [{PRODUCER_RECORD_RATE: 6.0}])
