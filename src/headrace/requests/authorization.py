"""Checks the permissions of a request with the authorizer.

A request that a broker sends for itself, on the inter-broker listener, needs no permission. A
forwarded request is checked on the controller, with the permissions of its client.
"""

from collections.abc import Iterable

from headrace.model.acls import CLUSTER_OPERATIONS
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.security.authorizer import CLUSTER, Operation, Resource, ResourceType, topic_resource

OPERATIONS_NOT_REQUESTED = -(2**31)
_DENIED = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def is_allowed(
    broker: BrokerContext, context: RequestContext, operation: Operation, resource: Resource
) -> bool:
    return context.is_internal or broker.authorizer.allows(
        context.principal, context.host, operation, resource
    )


def check(
    broker: BrokerContext, context: RequestContext, operation: Operation, resource: Resource
) -> None:
    """Raise the error of the resource's type if the operation is denied."""
    if is_denied(broker, context, operation, resource):
        raise ApiError(_DENIED[resource.type])


def is_denied(
    broker: BrokerContext, context: RequestContext, operation: Operation, resource: Resource
) -> bool:
    """Whether an operation is denied. Reports a denial, because the caller returns an error."""
    if is_allowed(broker, context, operation, resource):
        return False
    broker.authorizer.denied(context.principal, context.host, context.api_key, operation, resource)
    return True


def cannot_describe(broker: BrokerContext, context: RequestContext, name: str) -> bool:
    """Whether Describe on a topic is denied. Reports a denial, like `is_denied`."""
    return is_denied(broker, context, Operation.DESCRIBE, topic_resource(name))


def can_describe(broker: BrokerContext, context: RequestContext, name: str) -> bool:
    """Whether a list contains a topic. A denial is not reported."""
    return is_allowed(broker, context, Operation.DESCRIBE, topic_resource(name))


def allowed_operations(
    broker: BrokerContext,
    context: RequestContext,
    resource: Resource,
    operations: Iterable[Operation],
) -> int:
    """Kafka's authorized_operations: bit N is set if operation N is allowed."""
    return sum(1 << each for each in operations if is_allowed(broker, context, each, resource))


def cluster_operations(broker: BrokerContext, context: RequestContext, is_requested: bool) -> int:
    """The bits of the cluster; 0 if the principal cannot describe the cluster."""
    if not is_requested:
        return OPERATIONS_NOT_REQUESTED
    if not is_allowed(broker, context, Operation.DESCRIBE, CLUSTER):
        return 0
    return allowed_operations(broker, context, CLUSTER, CLUSTER_OPERATIONS)
