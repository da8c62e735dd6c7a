"""Whose settings a request means: a topic's, one broker's, or those of all brokers."""

from headrace.handlers.context import BrokerContext
from headrace.handlers.lookup import named_topic
from headrace.handlers.slots import failure
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import check_topic_name
from headrace.wire.codec import Message

TOPIC = 2
BROKER = 4

VALUE_BYTES_MAX = 2**15 - 1
"""DescribeConfigs could not tell a longer value to older clients."""


def resource_key(resource: Message) -> tuple[int, str]:
    return resource["resource_type"], resource["resource_name"]


def check_topic(broker: BrokerContext, name: str) -> None:
    if name not in broker.image.topics:
        check_topic_name(name)
        named_topic(broker, name)


def node_named(broker: BrokerContext, name: str) -> int | None:
    """This broker's id, or None for the settings that all brokers share."""
    if name == "":
        return None
    if name != str(broker.node_id):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"This is broker {broker.node_id}: ask {name[:20]!r} itself, or nobody by name.",
        )
    return broker.node_id


def unknown_resource(resource_type: int) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"There are no settings of the kind {resource_type}: topics are 2 and brokers 4.",
    )


def check_values(configs: list[Message]) -> None:
    for config in configs:
        if config["value"] is not None and len(config["value"].encode()) > VALUE_BYTES_MAX:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"The value of {config['name'][:100]!r} is too long."
            )


def altered(resource: Message, error: ApiError | None = None) -> Message:
    """One slot of the two Alter APIs."""
    resource_type, name = resource_key(resource)
    slot: Message = {"resource_type": resource_type, "resource_name": name}
    return slot if error is None else {**slot, **failure(error)}


def refuse_altering(request: Message, error: ApiError) -> Message:
    return {"responses": [altered(resource, error) for resource in request["resources"]]}
