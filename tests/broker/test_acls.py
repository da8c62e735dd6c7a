"""A broker with ACLs: real clients, admin clients, and permissions that end immediately."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace.config.security_rows import AUTHORIZERS
from headrace.model.errors import ErrorCode
from headrace.model.sasl import SCRAM_SHA_256
from headrace.wire import apis
from headrace.wire.codec import Message
from tests.broker.raw import FETCH_VERSION, RawConnection, one_batch
from tests.broker.test_sasl import CLIENTS, Secured, log_in

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ANY_OPERATION = AclOperation.ANY
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


class Controlled(Secured):
    """A broker with ACLs. The listener without a login belongs to a super user."""

    settings: ClassVar[dict[str, str]] = {
        "authorizer.class.name": AUTHORIZERS[0],
        "super.users": "User:ANONYMOUS",
    }

    def create_topic(self, name: str) -> None:
        (outcome,) = self.admin.create_topics([NewTopic(name, 1)]).values()
        outcome.result(30)

    def allow(self, user: str, operation: AclOperation, name: str, **fields: Any) -> AclBinding:
        acl = binding(user, operation, name, **fields)
        (outcome,) = self.admin.create_acls([acl]).values()
        outcome.result(30)
        return acl

    def revoke(self, *acls: AclBinding) -> None:
        outcomes = self.admin.delete_acls([_exact(acl) for acl in acls])
        for acl in acls:
            assert outcomes[_exact(acl)].result(30) == [acl]

    def connect(self, user: str) -> RawConnection:
        connection = RawConnection(self.port)
        assert log_in(connection, SCRAM_SHA_256, user)["error_code"] == 0
        return connection


def binding(
    user: str,
    operation: AclOperation,
    name: str,
    *,
    kind: ResourceType = ResourceType.TOPIC,
    pattern: ResourcePatternType = LITERAL,
    host: str = "*",
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", host, operation, permission)


def _exact(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        acl.restype,
        acl.name,
        acl.resource_pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    Controlled.settings["headrace.audit.file"] = str(tmp_path_factory.mktemp("audit") / "audit.log")
    controlled = Controlled()
    for user in ("alice", "bob"):
        controlled.create(user)
    yield controlled
    controlled.broker.stop()
    log = controlled.broker.log()
    controlled.broker.close()
    assert "internal error" not in log
    assert "Traceback" not in log


def produce(connection: RawConnection, topic: str) -> int:
    code: int = connection.produce(topic, one_batch(b"value"), acks=-1)["error_code"]
    return code


def fetch_body(
    topic: str, *, wait_ms: int = 0, session_id: int = 0, session_epoch: int = -1
) -> Message:
    part = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    topics = [] if session_epoch > 0 else [{"topic": topic, "partitions": [part]}]
    return {
        "replica_id": -1,
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def fetched(reply: Message) -> tuple[int, int]:
    """The error code and the number of bytes."""
    (topic,) = reply["responses"]
    (part,) = topic["partitions"]
    return part["error_code"], len(part["records"] or b"")


@pytest.mark.parametrize("client", CLIENTS)
def test_client_works_with_acls_and_not_without(controlled: Controlled, client: str) -> None:
    topic = f"works-{client}"
    controlled.create_topic(topic)
    with controlled.connect("alice") as alice:
        assert produce(alice, topic) == DENIED
    controlled.allow("alice", AclOperation.WRITE, topic)
    controlled.allow("alice", AclOperation.READ, "works-", pattern=PREFIXED)
    controlled.allow("alice", AclOperation.READ, topic, kind=ResourceType.GROUP)
    assert CLIENTS[client](controlled.options(SCRAM_SHA_256, "alice"), topic) == b"value"


def test_librdkafka_reports_denied_topics(controlled: Controlled) -> None:
    controlled.create_topic("closed")
    producer = Producer(controlled.options(SCRAM_SHA_256, "bob"))
    errors: list[int] = []
    producer.produce("closed", b"value", on_delivery=lambda error, _: errors.append(error.code()))
    assert producer.flush(60) == 0
    assert errors == [DENIED]


def test_no_request_is_allowed_after_its_acl_was_deleted(controlled: Controlled) -> None:
    controlled.create_topic("revoked")
    with controlled.connect("alice") as alice:
        for _ in range(5):
            acls = [
                controlled.allow("alice", operation, "revoked")
                for operation in (AclOperation.WRITE, AclOperation.READ)
            ]
            assert produce(alice, "revoked") == ErrorCode.NONE
            body = fetch_body("revoked")
            assert fetched(alice.ask(apis.FETCH, FETCH_VERSION, body))[0] == ErrorCode.NONE
            controlled.revoke(*acls)
            assert produce(alice, "revoked") == DENIED
            assert fetched(alice.ask(apis.FETCH, FETCH_VERSION, body)) == (DENIED, 0)


def test_long_poll_returns_nothing_after_its_acl_was_deleted(controlled: Controlled) -> None:
    controlled.create_topic("polled")
    acl = controlled.allow("alice", AclOperation.READ, "polled")
    with controlled.connect("alice") as alice, RawConnection(controlled.open_port) as admin:
        alice.send(alice.frame(apis.FETCH, FETCH_VERSION, fetch_body("polled", wait_ms=30_000)))
        # Usually the poll has begun to wait before this response.
        assert admin.ask(apis.API_VERSIONS, 0, {})["error_code"] == 0
        controlled.revoke(acl)
        assert produce(admin, "polled") == ErrorCode.NONE
        assert fetched(alice.read_answer(apis.FETCH, FETCH_VERSION)) == (DENIED, 0)


def test_fetch_session_ends_with_its_acl(controlled: Controlled) -> None:
    controlled.create_topic("session")
    acl = controlled.allow("alice", AclOperation.READ, "session")
    with controlled.connect("alice") as alice, RawConnection(controlled.open_port) as admin:
        assert produce(admin, "session") == ErrorCode.NONE
        opened = alice.ask(apis.FETCH, FETCH_VERSION, fetch_body("session", session_epoch=0))
        assert fetched(opened)[0] == ErrorCode.NONE
        session = opened["session_id"]
        assert session != 0
        controlled.revoke(acl)
        body = fetch_body("session", session_id=session, session_epoch=1)
        assert fetched(alice.ask(apis.FETCH, FETCH_VERSION, body)) == (DENIED, 0)


def test_other_acls_of_a_resource_apply_after_one_was_deleted(controlled: Controlled) -> None:
    """CVE-2024-27309."""
    controlled.create_topic("three")
    everyone = controlled.allow("*", AclOperation.WRITE, "three")
    denied = AclPermissionType.DENY
    first = controlled.allow("carol", AclOperation.WRITE, "three", permission=denied)
    for user in ("alice", "bob"):
        controlled.allow(user, AclOperation.WRITE, "three", permission=denied)
    controlled.revoke(first)
    for user in ("alice", "bob"):
        with controlled.connect(user) as connection:
            assert produce(connection, "three") == DENIED
    found = controlled.admin.describe_acls(_exact(everyone)).result(30)
    assert found == [everyone]


def test_rule_for_another_host_does_not_apply(controlled: Controlled) -> None:
    controlled.create_topic("hosts")
    with controlled.connect("bob") as bob:
        controlled.allow("bob", AclOperation.WRITE, "hosts", host="10.0.0.0/8")
        assert produce(bob, "hosts") == DENIED
        controlled.allow("bob", AclOperation.WRITE, "hosts", host="127.0.0.0/8")
        assert produce(bob, "hosts") == ErrorCode.NONE


def test_hidden_topics_are_not_listed(controlled: Controlled) -> None:
    controlled.create_topic("hidden")
    with controlled.connect("bob") as bob:
        every = bob.ask(apis.METADATA, 12, _metadata(None))
        assert "hidden" not in [topic["name"] for topic in every["topics"]]
        both = bob.ask(apis.METADATA, 12, _metadata(["hidden", "absent"]))["topics"]
        hidden, absent = both
        assert (hidden.pop("name"), absent.pop("name")) == ("hidden", "absent")
        assert hidden == absent
        assert hidden["error_code"] == DENIED


def _metadata(names: list[str] | None) -> Message:
    topics = None if names is None else [{"topic_id": None, "name": name} for name in names]
    return {
        "topics": topics,
        "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": True,
    }


def test_librdkafka_admin_filters_acls(controlled: Controlled) -> None:
    acls = [
        controlled.allow("dora", AclOperation.READ, "filters"),
        controlled.allow("dora", AclOperation.WRITE, "fil", pattern=PREFIXED),
        controlled.allow("dora", AclOperation.DESCRIBE, "*", kind=ResourceType.GROUP),
    ]

    def described(name: str | None, pattern: ResourcePatternType) -> list[AclBinding]:
        wanted = AclBindingFilter(
            ResourceType.TOPIC,
            name,
            pattern,
            "User:dora",
            None,
            ANY_OPERATION,
            AclPermissionType.ANY,
        )
        found: list[AclBinding] = controlled.admin.describe_acls(wanted).result(30)
        return sorted(found, key=lambda acl: str(acl.name))

    assert described("filters", ResourcePatternType.MATCH) == [acls[1], acls[0]]
    assert described("filters", ResourcePatternType.ANY) == [acls[0]]
    assert described(None, PREFIXED) == [acls[1]]
    controlled.revoke(*acls)
    assert described(None, ResourcePatternType.ANY) == []


def test_librdkafka_admin_gets_the_reason_of_a_rejected_acl(controlled: Controlled) -> None:
    acl = binding("dora", AclOperation.READ, "x", host="localhost")
    (outcome,) = controlled.admin.create_acls([acl]).values()
    with pytest.raises(KafkaException, match="Use \\*, an IP address or a CIDR range"):
        outcome.result(30)


def test_audit_file_has_denials_logins_and_changes(controlled: Controlled) -> None:
    path = Path(controlled.settings["headrace.audit.file"])
    acl = controlled.allow("bob", AclOperation.READ, "audited")
    controlled.revoke(acl)
    with controlled.connect("bob") as bob:
        assert produce(bob, "audited") == DENIED
    with RawConnection(controlled.port) as stranger:
        assert log_in(stranger, SCRAM_SHA_256, "bob", "a-wrong-password")["error_code"] == 58
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    rule = "Allow User:bob from host * Read on Topic audited"
    changes = [(line["event"], line["principal"]) for line in lines if line.get("acl") == rule]
    assert changes == [("ACL created", "User:ANONYMOUS"), ("ACL deleted", "User:ANONYMOUS")]
    (denial,) = [line for line in lines if line.get("resource") == "Topic audited"]
    assert (denial["event"], denial["principal"], denial["host"], denial["api"]) == (
        "denied",
        "User:bob",
        "127.0.0.1",
        "Produce",
    )
    logins = [(line["principal"], line["listener"]) for line in lines if line["event"] == "login"]
    assert ("User:bob", "SASL_PLAINTEXT") in logins
    (failure,) = [line for line in lines if line["event"] == "login failed"]
    assert "bob" in failure["why"]
    assert "a-wrong-password" not in text
    assert "audited" not in controlled.broker.log()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_user_without_permission_cannot_change_acls(controlled: Controlled) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(controlled.options(SCRAM_SHA_256, "bob"))
    (outcome,) = admin.create_acls([binding("bob", AclOperation.ALL, "*")]).values()
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        outcome.result(30)


def test_kafka_python_admin_manages_acls(controlled: Controlled) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePattern,
        ResourcePatternFilter,
    )
    from kafka.admin import ResourceType as Kind

    admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{controlled.open_port}")
    try:
        pattern = ResourcePattern(Kind.TOPIC, "python", ACLResourcePatternType.LITERAL)
        acl = ACL("User:eve", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)
        created = admin.create_acls([acl])
        assert (created["succeeded"], created["failed"]) == ([acl], [])
        wanted = ACLFilter(
            "User:eve",
            None,
            ACLOperation.ANY,
            ACLPermissionType.ANY,
            ResourcePatternFilter(Kind.ANY, None, ACLResourcePatternType.ANY),
        )
        found, _ = admin.describe_acls(wanted)
        assert found == [acl]
        ((_, deleted, _),) = admin.delete_acls([wanted])
        assert deleted == [acl]
        assert admin.describe_acls(wanted)[0] == []
    finally:
        admin.close()
