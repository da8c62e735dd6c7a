"""Operations that create, list and delete ACLs. Pure."""

from collections.abc import Sequence
from typing import Any

from headrace.client.core.errors import request_failed
from headrace.client.core.operation import (
    ANY,
    CONTROLLER,
    Operation,
    OperationEngine,
    Send,
    retrying,
)
from headrace.model import acls as model
from headrace.model.acls import Acl, AclFilter
from headrace.wire.apis import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS

PER_REQUEST_MAX = 1_000


def list_acls(engine: OperationEngine, selected: AclFilter) -> Operation[list[Acl]]:
    def attempt() -> Operation[list[Acl]]:
        response = yield Send(ANY, DESCRIBE_ACLS, _filter_fields(selected))
        if response["error_code"]:
            raise request_failed(response["error_code"], response["error_message"])
        return [
            _acl(resource, row) for resource in response["resources"] for row in resource["acls"]
        ]

    return (yield from retrying(engine, "listing ACLs", attempt))


def create_acls(engine: OperationEngine, acls: Sequence[Acl]) -> Operation[None]:
    for first in range(0, len(acls), PER_REQUEST_MAX):
        creations = [_acl_fields(acl) for acl in acls[first : first + PER_REQUEST_MAX]]
        yield from _create(engine, creations)


def _create(engine: OperationEngine, creations: list[dict[str, Any]]) -> Operation[None]:
    def attempt() -> Operation[None]:
        response = yield Send(CONTROLLER, CREATE_ACLS, {"creations": creations})
        for result in response["results"]:
            if result["error_code"]:
                raise request_failed(result["error_code"], result["error_message"])

    yield from retrying(engine, "creating ACLs", attempt)


def delete_acls(engine: OperationEngine, selected: AclFilter) -> Operation[list[Acl]]:
    def attempt() -> Operation[list[Acl]]:
        response = yield Send(CONTROLLER, DELETE_ACLS, {"filters": [_filter_fields(selected)]})
        (result,) = response["filter_results"]
        if result["error_code"]:
            raise request_failed(result["error_code"], result["error_message"])
        return [_acl(row, row) for row in result["matching_acls"]]

    return (yield from retrying(engine, "deleting ACLs", attempt))


def _acl(resource: Any, row: Any) -> Acl:
    return Acl(
        model.ResourceType(resource["resource_type"]),
        model.PatternType(resource["pattern_type"]),
        resource["resource_name"],
        row["principal"],
        row["host"],
        model.Operation(row["operation"]),
        model.Permission(row["permission_type"]),
    )


def _acl_fields(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": int(acl.type),
        "resource_name": acl.name,
        "resource_pattern_type": int(acl.pattern),
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


def _filter_fields(selected: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": _number(selected.type),
        "resource_name_filter": selected.name,
        "pattern_type_filter": int(selected.pattern),
        "principal_filter": selected.principal,
        "host_filter": selected.host,
        "operation": _number(selected.operation),
        "permission_type": _number(selected.permission),
    }


def _number(value: int | None) -> int:
    return model.ANY if value is None else int(value)
