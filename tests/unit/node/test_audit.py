"""The audit log: its lines, its limits, and which requests it reports."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.audit import BURST_MAX, PER_SECOND_MAX, Audit
from headrace.config.broker import BrokerConfig
from headrace.config.security_rows import AUTHORIZERS
from headrace.model.acls import Operation
from headrace.node.image_authorizer import Authorization
from headrace.security.authorizer import CLUSTER, group_resource, topic_resource
from headrace.wire import apis
from tests.unit.handlers.authorization_scenario import (
    ABSENT,
    OPEN,
    SECRET,
    ask,
    denying_broker,
    rules,
)
from tests.unit.handlers.handler_scenario import Asker, asker
from tests.unit.security.acl_scenario import deny


class Time:
    now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def elapsed(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 1_800_000_000_123


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict[str, Any]]]:
    class Lines(list[dict[str, Any]]):
        """The log, read again each time."""

        def __iter__(self) -> Iterator[dict[str, Any]]:
            names = {"headrace.audit"}
            texts = [each.getMessage() for each in caplog.records if each.name in names]
            return iter([json.loads(text) for text in texts])

    with caplog.at_level(logging.INFO, logger="headrace.audit"):
        yield Lines()


def test_line_has_time_event_principal_and_host(lines: list[dict[str, Any]]) -> None:
    time = Time()
    Audit(time.wall_ms, time.monotonic).logged_in("User:ann", "10.0.0.1", "CLIENTS")
    assert list(lines) == [
        {
            "time": "2027-01-15T08:00:00.123Z",
            "event": "login",
            "principal": "User:ann",
            "host": "10.0.0.1",
            "listener": "CLIENTS",
        }
    ]


def test_control_characters_cannot_write_a_line(
    lines: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    time = Time()
    user = 'User:a\n{"event": "login"}\x1b[2J\u2028'
    Audit(time.wall_ms, time.monotonic).logged_in(user, "::1", "CLIENTS")
    assert [line["principal"] for line in lines] == [user]
    (text,) = caplog.messages
    assert text.isascii()
    assert text.isprintable()


def test_denials_and_failed_logins_are_limited_and_counted(lines: list[dict[str, Any]]) -> None:
    time = Time()
    audit = Audit(time.wall_ms, time.monotonic)
    for _ in range(BURST_MAX + 50):
        audit.login_failed("10.0.0.1", "CLIENTS", "the proof is wrong")
    assert len(list(lines)) == BURST_MAX
    audit.changed("User:ann", "::1", "ACL created", acl="x")
    time.now_s += 1
    for _ in range(20):
        audit.denied("User:ann", "::1", "Fetch", "Read", "Topic x", "no ACL")
    found = list(lines)
    assert len(found) == BURST_MAX + 1 + PER_SECOND_MAX
    assert [line["suppressed"] for line in found if "suppressed" in line] == [50]


def test_denied_requests_are_reported_once(lines: list[dict[str, Any]]) -> None:
    client = denying_broker()
    rules(client).deny(Operation.DESCRIBE, topic_resource(SECRET), topic_resource(ABSENT))
    rules(client).deny(Operation.ALTER, CLUSTER)
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": name, "partitions": [partition]} for name in (SECRET, OPEN)]
    ask(client, apis.LIST_OFFSETS, replica_id=-1, isolation_level=0, topics=topics)
    ask(client, apis.ELECT_LEADERS, election_type=0, topic_partitions=None, timeout_ms=1)
    reported = [(operation, resource) for _, _, operation, resource in rules(client).reports]
    assert reported == [
        (Operation.DESCRIBE, topic_resource(SECRET)),
        (Operation.ALTER, CLUSTER),
    ]


def test_lists_and_alternatives_are_not_reported() -> None:
    client = denying_broker()
    rules(client).deny(Operation.DESCRIBE, topic_resource(SECRET), CLUSTER)
    rules(client).deny(Operation.IDEMPOTENT_WRITE, CLUSTER)
    body: dict[str, Any] = {"allow_auto_topic_creation": False}
    ask(client, apis.METADATA, topics=None, include_topic_authorized_operations=True, **body)
    ask(client, apis.LIST_GROUPS, states_filter=[], types_filter=[])
    producer: dict[str, Any] = {"transactional_id": None, "transaction_timeout_ms": 1}
    ask(client, apis.INIT_PRODUCER_ID, producer_id=-1, producer_epoch=-1, **producer)
    assert rules(client).reports == []


@pytest.mark.parametrize("version", [9, 10])
def test_denied_commit_is_reported(version: int) -> None:
    client = denying_broker()
    secret = {"topic_id": client.broker.image.topics[SECRET].topic_id, "name": SECRET}
    del secret["name" if version >= 10 else "topic_id"]
    rules(client).deny(Operation.READ, topic_resource(SECRET), group_resource("hidden"))
    for group in ("hidden", "other"):
        partition = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        topics = [{**secret, "partitions": [partition]}]
        fields: dict[str, Any] = {
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
        }
        ask(client, apis.OFFSET_COMMIT, version, group_id=group, topics=topics, **fields)
    reported = [(operation, resource) for _, _, operation, resource in rules(client).reports]
    assert reported == [
        (Operation.READ, group_resource("hidden")),
        (Operation.READ, topic_resource(SECRET)),
    ]


def test_line_of_a_denial_has_the_deciding_rule(lines: list[dict[str, Any]]) -> None:
    client = asker()
    config = BrokerConfig.load({"authorizer.class.name": AUTHORIZERS[0]})
    rule = deny("a", user="User:*")
    client.broker.image.acls[0] = (rule,)
    authorization = Authorization(config, _Listening(client), Time())  # type: ignore[arg-type]
    authorization.load()
    resource = topic_resource("a")
    authorization.authorizer.denied("User:x", "::1", apis.FETCH, Operation.READ, resource)
    (line,) = lines
    assert (line["api"], line["operation"], line["resource"]) == ("Fetch", "Read", "Topic a")
    assert line["why"] == str(rule) == "Deny User:* from host * Read on Topic a"


class _Listening:
    def __init__(self, client: Asker) -> None:
        self.image = client.broker.image

    def on_change(self, _: Any) -> None:
        pass


def test_changes_of_users_are_reported_without_their_keys(lines: list[dict[str, Any]]) -> None:
    client = denying_broker()
    credential = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"key"}
    upsertions = [{"name": "ann", **credential}]
    ask(client, apis.ALTER_USER_SCRAM_CREDENTIALS, deletions=[], upsertions=upsertions)
    (line,) = lines
    assert (line["event"], line["user"]) == ("credential stored", "ann")
    assert set(line) == {"time", "event", "principal", "host", "user", "mechanism"}


def test_changes_of_quotas_are_reported_but_not_validations(lines: list[dict[str, Any]]) -> None:
    client = denying_broker()
    ops = [
        {"key": "producer_byte_rate", "value": 5.0, "remove": False},
        {"key": "consumer_byte_rate", "value": 0.0, "remove": True},
    ]
    entity = [{"entity_type": "user", "entity_name": None}]
    entry = {"entity": entity, "ops": ops}
    ask(client, apis.ALTER_CLIENT_QUOTAS, entries=[entry], validate_only=True)
    assert list(lines) == []
    ask(client, apis.ALTER_CLIENT_QUOTAS, entries=[entry], validate_only=False)
    (line,) = lines
    assert (line["event"], line["entity"]) == ("quota changed", {"user": None})
    assert line["limits"] == {"producer_byte_rate": 5.0, "consumer_byte_rate": None}
