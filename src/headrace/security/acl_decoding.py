"""Decodes the ACLs and filters in requests, and checks them. Pure.

Kafka accepts any text as a host, and operations that a resource type does not have. Such ACLs would
have no effect, so they are rejected.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar

from headrace.model.acls import (
    ANY,
    CLUSTER_NAME,
    MATCH,
    OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    title,
)
from headrace.model.errors import ApiError, ErrorCode
from headrace.security.acl_hosts import InvalidHost, check_host

E = TypeVar("E", bound=IntEnum)


def new_acl(fields: Mapping[str, Any]) -> Acl:
    """An ACL of a CreateAcls request. Raises INVALID_REQUEST."""
    acl = Acl(
        _value(ResourceType, fields["resource_type"], "resource type"),
        _value(PatternType, fields["resource_pattern_type"], "pattern type"),
        fields["resource_name"],
        fields["principal"],
        fields["host"],
        _value(Operation, fields["operation"], "operation"),
        _value(Permission, fields["permission_type"], "permission type"),
    )
    check_acl(acl)
    return acl


def check_acl(acl: Acl) -> None:
    """Raise INVALID_REQUEST if an ACL is not valid."""
    if acl.type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.name:
        raise _invalid("Invalid empty resource name")
    if ":" not in acl.principal:
        raise _invalid(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    if acl.operation not in (Operation.ALL, *OPERATIONS[acl.type]):
        raise _invalid(
            f"{title(acl.type)} has no operation {title(acl.operation)}. Use All or one of "
            f"{', '.join(map(title, sorted(OPERATIONS[acl.type])))}."
        )
    try:
        check_host(acl.host)
    except InvalidHost as error:
        raise _invalid(str(error)) from None


def acl_filter(fields: Mapping[str, Any]) -> AclFilter:
    """The filter of a DescribeAcls or DeleteAcls request. Raises INVALID_REQUEST."""
    pattern = fields["pattern_type_filter"]
    if pattern not in (ANY, MATCH):
        pattern = _value(PatternType, pattern, "pattern type")
    return AclFilter(
        _selected(ResourceType, fields["resource_type_filter"], "resource type"),
        pattern,
        fields["resource_name_filter"],
        fields["principal_filter"],
        fields["host_filter"],
        _selected(Operation, fields["operation"], "operation"),
        _selected(Permission, fields["permission_type"], "permission type"),
    )


def _selected(kind: type[E], code: int, name: str) -> E | None:
    return None if code == ANY else _value(kind, code, name)


def _value(kind: type[E], code: int, name: str) -> E:
    try:
        return kind(code)
    except ValueError:
        raise _invalid(f"Invalid {name} {code}") from None


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)
