"""Operations that list and change quotas of users, client ids and IP addresses. Pure."""

from collections.abc import Mapping
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
from headrace.client.core.values import QuotaInfo
from headrace.wire.apis import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS


def list_quotas(engine: OperationEngine) -> Operation[list[QuotaInfo]]:
    def attempt() -> Operation[list[QuotaInfo]]:
        response = yield Send(ANY, DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})
        if response["error_code"]:
            raise request_failed(response["error_code"], response["error_message"])
        return [_info(entry) for entry in response["entries"]]

    return (yield from retrying(engine, "listing quotas", attempt))


def _info(entry: Any) -> QuotaInfo:
    return QuotaInfo(
        {each["entity_type"]: each["entity_name"] for each in entry["entity"]},
        {each["key"]: each["value"] for each in entry["values"]},
    )


def alter_quotas(
    engine: OperationEngine, entity: Mapping[str, str | None], limits: Mapping[str, float | None]
) -> Operation[None]:
    """Set limits of one entity, or remove those that are None."""
    entry = {
        "entity": [{"entity_type": type_, "entity_name": name} for type_, name in entity.items()],
        "ops": [
            {"key": kind, "value": 0.0 if limit is None else limit, "remove": limit is None}
            for kind, limit in limits.items()
        ],
    }

    def attempt() -> Operation[None]:
        fields = {"entries": [entry], "validate_only": False}
        response = yield Send(CONTROLLER, ALTER_CLIENT_QUOTAS, fields)
        for result in response["entries"]:
            if result["error_code"]:
                raise request_failed(result["error_code"], result["error_message"])

    yield from retrying(engine, "changing quotas", attempt)
