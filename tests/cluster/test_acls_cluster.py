"""ACLs of a cluster on a real ZooKeeper: every broker applies every change."""

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace.config.security_rows import AUTHORIZERS
from headrace.coordination import acl_layout
from headrace.model.acls import Acl, Operation, PatternType, Permission, ResourceType
from headrace.model.errors import ErrorCode
from headrace.model.sasl import SCRAM_SHA_256
from headrace.wire.apis import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS, METADATA
from tests.broker.raw import RawConnection, eventually
from tests.broker.test_sasl import log_in
from tests.cluster.test_sasl_cluster import NODES, SecuredCluster, stored

TOPIC_TYPE, LITERAL, ANY, DESCRIBE, WRITE, ALLOW = 2, 3, 1, 8, 4, 3


class AclCluster(SecuredCluster):
    """A cluster with ACLs. The listener without a login belongs to a super user."""

    settings: ClassVar[dict[str, str]] = {
        "authorizer.class.name": AUTHORIZERS[0],
        "super.users": "User:ANONYMOUS",
    }

    def grant(self, node: int, topic: str, operation: int) -> None:
        acl = {
            "resource_type": TOPIC_TYPE,
            "resource_name": topic,
            "resource_pattern_type": LITERAL,
            "principal": "User:bob",
            "host": "*",
            "operation": operation,
            "permission_type": ALLOW,
        }
        with self.connect(self.open[node]) as admin:
            (result,) = admin.ask(CREATE_ACLS, 3, {"creations": [acl]})["results"]
        assert result["error_code"] == ErrorCode.NONE

    def revoke(self, node: int, topic: str) -> None:
        with self.connect(self.open[node]) as admin:
            reply = admin.ask(DELETE_ACLS, 3, {"filters": [_selected(topic)]})
        (result,) = reply["filter_results"]
        assert result["error_code"] == ErrorCode.NONE
        assert len(result["matching_acls"]) == 1

    def knows_bob(self, node: int) -> bool:
        with self.connect(self.secured[node]) as connection:
            return bool(log_in(connection, SCRAM_SHA_256, "bob")["error_code"] == 0)

    def log_in(self, node: int) -> RawConnection:
        connection = self.connect(self.secured[node])
        assert log_in(connection, SCRAM_SHA_256, "bob")["error_code"] == 0
        return connection


def _selected(topic: str | None) -> dict[str, Any]:
    return {
        "resource_type_filter": TOPIC_TYPE,
        "resource_name_filter": topic,
        "pattern_type_filter": LITERAL,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }


def sees(connection: RawConnection, topic: str) -> bool:
    topics = [{"topic_id": None, "name": topic}]
    body = {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    (found,) = connection.ask(METADATA, 12, body)["topics"]
    return bool(found["error_code"] != ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def is_hidden(connection: RawConnection, topic: str) -> bool:
    return not sees(connection, topic)


def describes(cluster: AclCluster, node: int, topic: str) -> bool:
    with cluster.connect(cluster.open[node]) as admin:
        return bool(admin.ask(DESCRIBE_ACLS, 3, _selected(topic))["resources"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclCluster]:
    cluster = AclCluster(tmp_path_factory.mktemp("acls"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    cluster.alter(UserScramCredentialUpsertion("bob", info, b"secret"))
    for node in NODES:
        eventually("the user can log in", partial(cluster.knows_bob, node))
    yield cluster
    cluster.cluster.close()


def test_every_broker_applies_a_change_that_any_broker_received(cluster: AclCluster) -> None:
    bob = {node: cluster.log_in(node) for node in NODES}
    for node in NODES:
        topic = f"topic-{node}"
        assert not any(sees(connection, topic) for connection in bob.values())
        cluster.grant(node, topic, DESCRIBE)
        assert sees(bob[node], topic)
        for other in bob.values():
            eventually(f"{topic} is visible", partial(sees, other, topic))
        cluster.revoke(node, topic)
        assert not sees(bob[node], topic)
        for other in bob.values():
            eventually(f"{topic} is hidden", partial(is_hidden, other, topic))
    for connection in bob.values():
        connection.sock.close()


def test_broker_that_cannot_read_all_acls_allows_only_super_users(cluster: AclCluster) -> None:
    names = ("readable", "unreadable")
    for name in names:
        cluster.grant(1, name, DESCRIBE)
    for node in NODES:
        with cluster.log_in(node) as bob:
            for name in names:
                eventually(f"{name} is visible", partial(sees, bob, name))
    acl = (ResourceType.TOPIC, PatternType.LITERAL, names[1], "User:bob", "*")
    path = acl_layout.acl_path(acl_layout.acl_node(Acl(*acl, Operation.DESCRIBE, Permission.ALLOW)))
    document = stored(cluster, path, b'{"version":1,"acls":[["Topic"]]}')
    cluster.cluster.restart(1)
    with cluster.log_in(1) as bob, cluster.connect(cluster.open[1]) as admin:
        for name in names:
            assert not sees(bob, name)
            assert sees(admin, name)
    stored(cluster, path, document)
    cluster.cluster.restart(1)
    with cluster.log_in(1) as bob:
        for name in names:
            assert sees(bob, name)
            cluster.revoke(1, name)


def test_brokers_replicate_and_forward_without_acls(cluster: AclCluster) -> None:
    (outcome,) = cluster.admin.create_topics([NewTopic("copied", 3, 3)]).values()
    outcome.result(60)
    cluster.grant(2, "copied", WRITE)
    for node in NODES:
        eventually("the ACL is described", partial(describes, cluster, node, "copied"))
    producer = Producer(
        {
            "bootstrap.servers": ",".join(cluster.secured.values()),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": SCRAM_SHA_256,
            "sasl.username": "bob",
            "sasl.password": "secret",
            "acks": "all",
            "log_level": 0,
        }
    )
    errors: list[object] = []
    for number in range(30):
        producer.produce(
            "copied",
            b"value",
            partition=number % 3,
            on_delivery=lambda error, _: errors.append(error),
        )
    assert producer.flush(60) == 0
    assert errors == [None] * 30
