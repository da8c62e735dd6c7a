"""CreateTopics, versions 2 to 7: create topics.

- Each topic has its own result. A topic that occurs twice is rejected.
- -1 partitions or replicas mean the broker's default, in every version.
- Any broker accepts the request and forwards it to the controller, which decides.
- Brokers can create internal topics on the inter-broker listener.
- If a client exceeds controller_mutation_rate, its topics are rejected since version 6. In older
  versions, the client is delayed.
- Requires: Create on the cluster or the topic; for settings in the response, DescribeConfigs on the
  topic.
- Versions: 2 to 7. Since 5, the response contains the settings of the topic, since 7 its id.

Gaps: with validate_only, the topic id is zero; Kafka returns a random id of no topic.
"""

from headrace.config.changes import check_topic_config, collect
from headrace.config.describe import describe_topic
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicState, already_exists, check_topic_name
from headrace.requests.authorization import check, is_allowed
from headrace.requests.config_resources import check_values
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.deadline import Deadline
from headrace.requests.mutations import counted
from headrace.requests.replies import failure, repeated
from headrace.runtime.gather_bounded import gather_bounded
from headrace.security.authorizer import CLUSTER, Operation, topic_resource
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    twice = repeated(topic["name"] for topic in request["topics"])
    deadline = Deadline(broker.clock, request["timeout_ms"])
    may_create_all = is_allowed(broker, context, Operation.CREATE, CLUSTER)

    async def entry(topic: Message) -> Message:
        try:
            if not may_create_all:
                check(broker, context, Operation.CREATE, topic_resource(topic["name"]))
            if topic["name"] in twice:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The request contains this topic twice.")
            with counted(broker, context, _partitions(broker, topic)):
                created = await _create(broker, context, deadline, topic, request["validate_only"])
            return _created(broker, context, created, request["validate_only"])
        except ApiError as error:
            return _failed(topic["name"], error)

    topics = {topic["name"]: topic for topic in request["topics"]}
    return {"topics": await gather_bounded(entry, topics.values())}


def error_response(request: Message, error: ApiError) -> Message:
    names = dict.fromkeys(topic["name"] for topic in request["topics"])
    return {"topics": [_failed(name, error) for name in names]}


async def _create(
    broker: BrokerContext,
    context: RequestContext,
    deadline: Deadline,
    topic: Message,
    is_validate_only: bool,
) -> TopicState:
    check_topic_name(topic["name"])
    if topic["name"] in broker.image.topics:
        # Checked before the settings: clients ignore only this error if a topic exists.
        raise already_exists(topic["name"])
    check_values(topic["configs"])
    configs = collect((each["name"], each["value"]) for each in topic["configs"])
    check_topic_config(broker.config, configs)
    created = await deadline.wait_for(
        broker.controller.create_topic(
            topic["name"],
            partitions=topic["num_partitions"],
            replication_factor=topic["replication_factor"],
            assignment=_assignment(topic),
            configs=configs,
            validate_only=is_validate_only,
            internal=context.is_internal,
        )
    )
    await deadline.wait_for(broker.opened(topic["name"]))
    return created


def _partitions(broker: BrokerContext, topic: Message) -> int:
    """The number of partitions to create, for the client's quota."""
    given = len(topic["assignments"]) or topic["num_partitions"]
    return given if given > 0 else broker.config.get_int("num.partitions")


def _assignment(topic: Message) -> dict[int, list[int]] | None:
    """The replicas of each partition; None: the controller chooses them."""
    given = topic["assignments"]
    if not given:
        return None
    by_index = {each["partition_index"]: each["broker_ids"] for each in given}
    if len(by_index) != len(given):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The assignment contains a partition twice."
        )
    return by_index


def _created(
    broker: BrokerContext, context: RequestContext, topic: TopicState, is_validate_only: bool
) -> Message:
    # A topic that was only validated has no id. Kafka returns a random one.
    created = {"name": topic.name, "topic_id": None if is_validate_only else topic.topic_id}
    if not is_allowed(broker, context, Operation.DESCRIBE_CONFIGS, topic_resource(topic.name)):
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return {**created, "configs": (), "topic_config_error_code": denied}
    return {
        **created,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": [
            {
                "name": row.name,
                "value": row.value,
                "read_only": row.read_only,
                "config_source": row.source,
                "is_sensitive": row.is_sensitive,
            }
            for row in describe_topic(broker.config, topic.configs)
        ],
    }


def _failed(name: str, error: ApiError) -> Message:
    return {"name": name, "configs": (), **failure(error)}
