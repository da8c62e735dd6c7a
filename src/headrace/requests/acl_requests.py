"""Checks and results shared by the requests about ACLs."""

from headrace.model.acls import Acl
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext
from headrace.wire.codec import Message


def check_enabled(broker: BrokerContext) -> None:
    if not broker.config.has_authorizer:
        raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")


def acl_message(acl: Acl) -> Message:
    """The fields of a rule without those of its resource."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


def resource_message(acl: Acl) -> Message:
    return {
        "resource_type": int(acl.type),
        "resource_name": acl.name,
        "pattern_type": int(acl.pattern),
    }
