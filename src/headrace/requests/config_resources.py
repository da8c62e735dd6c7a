"""Resources in requests about settings: a topic, a broker, all brokers or a group.

AlterConfigs and IncrementalAlterConfigs share the loop over resources. Each of them decides how the
settings of one resource change.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from headrace.config.broker import BrokerConfig
from headrace.config.changes import Operation as ConfigOperation
from headrace.config.rejected import check_at_run_time
from headrace.config.setting import VALUE_BYTES_MAX, ConfigError
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import check_topic_name
from headrace.requests.authorization import check, is_allowed
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.lookup import named_topic
from headrace.requests.replies import failure, repeated
from headrace.security.authorizer import (
    CLUSTER,
    Operation,
    Resource,
    group_resource,
    topic_resource,
)
from headrace.wire.codec import Message

TOPIC = 2
BROKER = 4
GROUP = 32

GROUP_NAME_BYTES_MAX = 255
"""The group name is the name of a node in the store."""

"""DescribeConfigs cannot return a longer value to older clients."""


class Edits(NamedTuple):
    """Functions from the current settings of a resource to its new ones."""

    of_topic: Callable[[Mapping[str, str]], Mapping[str, str]]
    of_broker: Callable[[Mapping[str, str], bool], Mapping[str, str]]
    """The second argument: whether these are the settings of all brokers."""
    of_group: Callable[[Mapping[str, str]], Mapping[str, str]]


async def alter_each(
    broker: BrokerContext,
    context: RequestContext,
    request: Message,
    edits: Callable[[BrokerConfig, list[Message]], Edits],
) -> Message:
    """The response to an Alter request. `edits` reads the request's settings of one resource."""
    twice = repeated(resource_key(resource) for resource in request["resources"])
    entries = []
    for resource in request["resources"]:
        try:
            check_resource(broker, context, Operation.ALTER_CONFIGS, resource)
            if resource_key(resource) in twice:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, "The request contains this resource twice."
                )
            check_values(resource["configs"])
            edit = edits(broker.config, resource["configs"])
            await _alter(broker, resource, edit, request["validate_only"])
            entries.append(_altered(resource))
        except ApiError as error:
            entries.append(_altered(resource, error))
    return {"responses": entries}


async def check_own_tls(
    broker: BrokerContext,
    context: RequestContext,
    request: Message,
    edits: Callable[[BrokerConfig, list[Message]], Edits],
) -> None:
    """Raise INVALID_CONFIG if this broker cannot load the certificates of its new settings.

    The controller cannot check this: the files are on this broker.
    """
    if broker.tls is None or not is_allowed(broker, context, Operation.ALTER_CONFIGS, CLUSTER):
        return
    from headrace.security.tls import TlsError

    configs = broker.image.broker_configs
    for resource in request["resources"]:
        if resource_key(resource) != (BROKER, str(broker.node_id)):
            continue
        try:
            edit = edits(broker.config, resource["configs"])
            after = edit.of_broker(configs.get(broker.node_id, {}), False)
        except ApiError:
            continue  # The controller returns this error.
        check_tls = partial(broker.tls.check_dynamic, after, configs.get(None, {}))
        try:
            await broker.worker.run(check_tls)
        except TlsError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{error}.") from None


def altering_error_response(request: Message, error: ApiError) -> Message:
    return {"responses": [_altered(resource, error) for resource in request["resources"]]}


def check_resource(
    broker: BrokerContext, context: RequestContext, operation: Operation, resource: Message
) -> None:
    """Check the permission for the settings of a resource; for brokers, the one on the cluster.

    Resources of other types are not checked here: they are rejected as unknown.
    """
    found = resource_of(resource)
    if found is not None:
        check(broker, context, operation, found)


def resource_of(resource: Message) -> Resource | None:
    """The resource of an authorizer; None if the type is unknown."""
    resource_type, name = resource_key(resource)
    if resource_type == TOPIC:
        return topic_resource(name)
    if resource_type == GROUP:
        return group_resource(name)
    return CLUSTER if resource_type == BROKER else None


def resource_key(resource: Message) -> tuple[int, str]:
    return resource["resource_type"], resource["resource_name"]


def check_topic(broker: BrokerContext, name: str) -> None:
    if name not in broker.image.topics:
        check_topic_name(name)
        named_topic(broker, name)


def check_group(name: str) -> None:
    """Check the name only: a group can have settings before it exists."""
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The group name must not be empty.")
    if len(name.encode()) > GROUP_NAME_BYTES_MAX:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"The group name must not be longer than {GROUP_NAME_BYTES_MAX} bytes.",
        )


def node_named(broker: BrokerContext, name: str) -> int | None:
    """This broker's id, or None for the settings of all brokers."""
    if name == "":
        return None
    if name != str(broker.node_id):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"This is broker {broker.node_id}. Send the request to broker {name[:20]!r}, or use an "
            "empty name for the settings of all brokers.",
        )
    return broker.node_id


def _node_to_alter(broker: BrokerContext, name: str) -> int | None:
    """The id of any broker, or None for all: the controller writes the settings of every broker."""
    known = {str(node_id): node_id for node_id in broker.image.brokers}
    return known[name] if name in known else node_named(broker, name)


def unknown_resource(resource_type: int) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"Unknown resource type {resource_type}: supported are 2 (topic), 4 (broker) and 32 "
        "(group).",
    )


def check_values(configs: list[Message]) -> None:
    for config in configs:
        if config["value"] is not None and len(config["value"].encode()) > VALUE_BYTES_MAX:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"The value of {config['name'][:100]!r} is too long."
            )


async def _alter(
    broker: BrokerContext, resource: Message, edits: Edits, is_validate_only: bool
) -> None:
    resource_type, name = resource_key(resource)
    controller = broker.controller
    if resource_type == TOPIC:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "The topic name must not be empty.")
        check_topic(broker, name)
        await controller.alter_topic_configs(name, edits.of_topic, validate_only=is_validate_only)
    elif resource_type == BROKER:
        node_id = _node_to_alter(broker, name)
        _check_security(broker, node_id, resource["configs"])
        try:
            await controller.alter_broker_configs(
                node_id,
                lambda current: edits.of_broker(current, node_id is None),
                validate_only=is_validate_only,
            )
        except ApiError as error:
            if error.code != ErrorCode.INVALID_CONFIG:
                raise
            # As in Kafka, which has INVALID_CONFIG for settings of topics and groups only.
            raise ApiError(ErrorCode.INVALID_REQUEST, error.message) from None
    elif resource_type == GROUP:
        check_group(name)
        await controller.alter_group_configs(name, edits.of_group, validate_only=is_validate_only)
    else:
        raise unknown_resource(resource_type)


def _check_security(broker: BrokerContext, node_id: int | None, configs: list[Message]) -> None:
    """Reject security settings without an effect, as at the start of a broker."""
    settings = {
        each["name"]: each["value"]
        for each in configs
        if each["value"] is not None and each.get("config_operation") != ConfigOperation.DELETE
    }
    info = broker.image.brokers.get(broker.node_id if node_id is None else node_id)
    try:
        check_at_run_time(settings, () if info is None else info.endpoints)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, error.message) from None


def _altered(resource: Message, error: ApiError | None = None) -> Message:
    """One entry of an Alter response."""
    resource_type, name = resource_key(resource)
    entry: Message = {"resource_type": resource_type, "resource_name": name}
    return entry if error is None else {**entry, **failure(error)}
