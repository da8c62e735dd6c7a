"""An authorizer that denies listed operations, and requests to a broker that uses it."""

from dataclasses import dataclass, field
from typing import Any

from headrace.model.cluster import ClusterImage
from headrace.model.errors import ErrorCode
from headrace.requests.topic_permissions import TopicPermissions
from headrace.security.authorizer import (
    AllowAll,
    Operation,
    Resource,
    group_resource,
    topic_resource,
)
from headrace.wire import apis
from headrace.wire.apis import APIS
from headrace.wire.codec import Message
from tests.unit.handlers.handler_scenario import Asker, asker

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
SECRET, OPEN, ABSENT = "secret", "open", "absent"
"""The first and the last one are denied, and only the last one does not exist."""
SECRETS = (topic_resource(SECRET), topic_resource(ABSENT))
GROUP = group_resource("hidden")
Question = tuple[str, str, Operation, Resource]


@dataclass
class Rules:
    """Denies pairs of operation and resource, and allows the rest."""

    forbidden: set[tuple[Operation, Resource]] = field(default_factory=set)
    version: int = 1
    questions: list[Question] = field(default_factory=list)
    reports: list[Question] = field(default_factory=list)
    reported_apis: list[int] = field(default_factory=list)

    def deny(self, operation: Operation, *resources: Resource) -> None:
        self.forbidden |= {(operation, resource) for resource in resources}
        self.version += 1

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        self.questions.append((principal, host, operation, resource))
        return (operation, resource) not in self.forbidden

    def denied(
        self, principal: str, host: str, api_key: int, operation: Operation, resource: Resource
    ) -> None:
        self.reports.append((principal, host, operation, resource))
        self.reported_apis.append(api_key)


def open_permissions() -> TopicPermissions:
    return TopicPermissions(AllowAll(), ClusterImage("cluster"))


def denying_broker() -> Asker:
    """A client of a broker with two topics, whose authorizer is `Rules`."""
    client = asker()
    client.add_topic(SECRET)
    client.add_topic(OPEN)
    client.broker.authorizer = Rules()
    return client


def rules(client: Asker) -> Rules:
    assert isinstance(client.broker.authorizer, Rules)
    return client.broker.authorizer


def ask(client: Asker, api_key: int, version: int | None = None, **body: Any) -> Message:
    newest = APIS[api_key].version_max if version is None else version
    return client.ask(api_key, newest, body)


def by_name(entries: list[Message], name: str = "name", field: str = "error_code") -> Message:
    return {entry[name]: entry[field] for entry in entries}


def partition_errors(topics: list[Message], name: str = "name") -> Message:
    """The error of the first partition of each topic."""
    return {topic[name]: topic["partitions"][0]["error_code"] for topic in topics}


def named(index: str, **fields: Any) -> list[Message]:
    """The three topics with partition 0 each."""
    partitions = [{index: 0, **fields}]
    return [{"name": name, "partitions": partitions} for name in (SECRET, OPEN, ABSENT)]


def create_topic(client: Asker, name: str) -> Message:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    topics = [{**topic, "assignments": [], "configs": []}]
    reply = ask(client, apis.CREATE_TOPICS, topics=topics, timeout_ms=1000, validate_only=False)
    (slot,) = reply["topics"]
    assert isinstance(slot, dict)
    return slot
