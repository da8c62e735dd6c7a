"""Produce and Fetch ask for each topic, once per connection and version of the rules."""

from uuid import uuid4

import pytest

from headrace.model.cluster import ClusterImage
from headrace.model.errors import ErrorCode
from headrace.model.sasl import ANONYMOUS
from headrace.model.topics import PartitionState, TopicState
from headrace.requests.topic_permissions import READ, TOPICS_MAX, WRITE, TopicPermissions
from headrace.runtime.exchange import Peer
from headrace.security.authorizer import Operation, topic_resource
from headrace.wire.apis import FETCH, PRODUCE
from tests.unit.handlers.authorization_scenario import Rules
from tests.unit.replication.leader_scenario import Leader
from tests.unit.replication.replica_scenario import TOPIC, TOPIC_ID

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
STATES = (PartitionState(1, 0, (1,), (1,)),)


@pytest.fixture
def rules() -> Rules:
    return Rules()


@pytest.fixture
def permissions(rules: Rules) -> TopicPermissions:
    image = ClusterImage("cluster")
    image.put_topic(TopicState(TOPIC, TOPIC_ID, STATES, {}))
    return TopicPermissions(rules, image)


def test_produce_needs_write_topic(rules: Rules, permissions: TopicPermissions) -> None:
    leader = Leader(permissions)
    assert leader.write(0, 0) == ErrorCode.NONE
    rules.deny(Operation.WRITE, topic_resource(TOPIC))
    assert leader.write(0, 1) == DENIED
    assert leader.partition.log.log_end_offset == 1
    assert leader.read(0) == ErrorCode.NONE


def test_fetch_by_id_needs_read_topic(rules: Rules, permissions: TopicPermissions) -> None:
    leader = Leader(permissions)
    assert leader.write(0, 0) == ErrorCode.NONE
    assert leader.read(0) == ErrorCode.NONE
    rules.deny(Operation.READ, topic_resource(TOPIC))
    assert leader.read(0) == DENIED
    assert leader.write(0, 1) == ErrorCode.NONE


def test_topic_that_does_not_exist_is_denied_by_its_name(
    rules: Rules, permissions: TopicPermissions
) -> None:
    rules.deny(Operation.WRITE, topic_resource("absent"))
    assert not permissions.allows(Peer(), WRITE, b"absent", False)
    assert permissions.allows(Peer(), READ, b"absent", False)


def test_unknown_id_is_not_denied_and_not_remembered(
    rules: Rules, permissions: TopicPermissions
) -> None:
    peer, unknown = Peer(), uuid4()
    assert permissions.allows(peer, READ, unknown.bytes, True)
    rules.forbidden.add((Operation.READ, topic_resource("new")))
    permissions.image.put_topic(TopicState("new", unknown, STATES, {}))
    assert not permissions.allows(peer, READ, unknown.bytes, True)


def test_name_of_sixteen_bytes_is_not_taken_for_an_id(
    rules: Rules, permissions: TopicPermissions
) -> None:
    peer, name = Peer(), "sixteen-bytes-ok"
    rules.deny(Operation.READ, topic_resource(name))
    assert not permissions.allows(peer, READ, name.encode(), False)
    assert permissions.allows(peer, READ, name.encode(), True)


def test_responses_are_cached_until_the_rules_change(
    rules: Rules, permissions: TopicPermissions
) -> None:
    peer = Peer()
    for _ in range(3):
        assert permissions.allows(peer, WRITE, TOPIC.encode(), False)
        assert permissions.allows(peer, READ, TOPIC.encode(), False)
    resource = topic_resource(TOPIC)
    expected = [(ANONYMOUS, "", each, resource) for each in (Operation.READ, Operation.WRITE)]
    assert rules.questions == expected
    rules.deny(Operation.WRITE, resource)
    assert not permissions.allows(peer, WRITE, TOPIC.encode(), False)


def test_denial_is_reported_once_per_connection_and_version(
    rules: Rules, permissions: TopicPermissions
) -> None:
    resource = topic_resource(TOPIC)
    rules.deny(Operation.READ, resource)
    rules.deny(Operation.WRITE, resource)
    peer = Peer()
    for _ in range(3):
        assert not permissions.allows(peer, WRITE, TOPIC.encode(), False)
        assert not permissions.allows(peer, READ, TOPIC_ID.bytes, True)
    expected = [(ANONYMOUS, "", each, resource) for each in (Operation.WRITE, Operation.READ)]
    assert rules.reports == expected
    assert rules.reported_apis == [PRODUCE, FETCH]
    assert not permissions.allows(Peer(), WRITE, TOPIC.encode(), False)
    rules.version += 1
    assert not permissions.allows(peer, WRITE, TOPIC.encode(), False)
    assert len(rules.reports) == 4


def test_cache_of_a_connection_is_bounded(permissions: TopicPermissions) -> None:
    peer = Peer()
    for index in range(3 * TOPICS_MAX):
        assert permissions.allows(peer, READ, b"t%d" % index, False)
        assert len(peer.rights_by_name) <= TOPICS_MAX


def test_connections_of_brokers_need_no_permission(
    rules: Rules, permissions: TopicPermissions
) -> None:
    rules.deny(Operation.READ, topic_resource(TOPIC))
    peer = Peer()
    peer.is_internal = True
    assert permissions.allows(peer, READ, TOPIC.encode(), False)
    assert rules.questions == []
