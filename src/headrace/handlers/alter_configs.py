"""AlterConfigs, versions 0 to 2: replace all settings of a topic or a broker.

The older of two APIs: what is not named goes back to its default. One result per resource; one
that is named twice is refused in each of its slots and left as it is.
"""

from headrace.config.changes import check_broker_config, check_topic_config, collect
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
            await _replace(broker, resource, request["validate_only"])
            slots.append(altered(resource))
        except ApiError as error:
            slots.append(altered(resource, error))
    return {"responses": slots}


async def _replace(broker: BrokerContext, resource: Message, is_validate_only: bool) -> None:
    resource_type, name = resource_key(resource)
    check_values(resource["configs"])
    settings = collect((each["name"], each["value"]) for each in resource["configs"])
    controller = broker.controller
    if resource_type == TOPIC:
        check_topic(broker, name)
        check_topic_config(broker.config, settings)
        await controller.alter_topic_configs(
            name, lambda _: settings, validate_only=is_validate_only
        )
    elif resource_type == BROKER:
        node_id = node_named(broker, name)
        check_broker_config(settings, for_all_brokers=node_id is None)
        await controller.alter_broker_configs(
            node_id, lambda _: settings, validate_only=is_validate_only
        )
    else:
        raise unknown_resource(resource_type)
