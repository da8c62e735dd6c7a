"""IncrementalAlterConfigs, versions 0 and 1: set, delete, append to, subtract from settings.

One result per resource; a resource changes as a whole or not at all, and one that is named twice
is refused in each of its slots. Gaps: loggers, client metrics and groups are not offered.
"""

from headrace.config.changes import Change, apply_broker_changes, apply_topic_changes
from headrace.handlers.config_resources import (
    BROKER,
    TOPIC,
    altered,
    check_topic,
    check_values,
    node_named,
    refuse_altering,
    resource_key,
    unknown_resource,
)
from headrace.handlers.context import BrokerContext, RequestContext
from headrace.handlers.slots import repeated
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.codec import Message

refuse = refuse_altering


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    twice = repeated(resource_key(resource) for resource in request["resources"])
    slots = []
    for resource in request["resources"]:
        try:
            if resource_key(resource) in twice:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The request names this twice.")
            await _alter(broker, resource, request["validate_only"])
            slots.append(altered(resource))
        except ApiError as error:
            slots.append(altered(resource, error))
    return {"responses": slots}


async def _alter(broker: BrokerContext, resource: Message, is_validate_only: bool) -> None:
    resource_type, name = resource_key(resource)
    check_values(resource["configs"])
    changes = [
        Change(each["name"], each["config_operation"], each["value"])
        for each in resource["configs"]
    ]
    config, controller = broker.config, broker.controller
    if resource_type == TOPIC:
        check_topic(broker, name)
        await controller.alter_topic_configs(
            name,
            lambda current: apply_topic_changes(config, current, changes),
            validate_only=is_validate_only,
        )
    elif resource_type == BROKER:
        node_id = node_named(broker, name)
        await controller.alter_broker_configs(
            node_id,
            lambda current: apply_broker_changes(
                config, current, changes, for_all_brokers=node_id is None
            ),
            validate_only=is_validate_only,
        )
    else:
        raise unknown_resource(resource_type)
