"""AlterClientQuotas, versions 0 and 1: set and remove quotas of users, client ids and IP addresses.

- Each entity has its own result. An entity that occurs twice is rejected and not changed.
- In the response, the client id of an entity precedes its user, as in Kafka.
- Limits are per broker. All brokers apply a change immediately.
- Adds two kinds of limits to Kafka's: producer_record_rate and consumer_record_rate, in records per
  second.
- Any broker accepts the request and forwards it to the controller.
- Requires: AlterConfigs on the cluster.
- Versions: 0 and 1.

Gaps: a host name as IP address is rejected; Kafka resolves it. Rejects NaN, infinity and 2^63,
which Kafka accepts for some kinds, and names of more than 255 bytes.
"""

from collections.abc import Mapping

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.quotas import Entity, check_entity, check_limit, entity_of
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure, repeated
from headrace.wire.codec import Message

_Names = tuple[tuple[str, str | None], ...]


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    twice = repeated(map(_names, request["entries"]))
    results: dict[_Names, Message] = {}
    for entry in request["entries"]:
        names = _names(entry)
        if names in results:
            continue
        results[names] = {"entity": _entity(names), "error_message": None}
        try:
            if names in twice:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {_text(names)}"
                )
            await _alter(broker, names, entry["ops"], request["validate_only"])
            if not request["validate_only"]:
                _audit(broker, context, names, entry["ops"])
        except ApiError as error:
            results[names] |= failure(error)
    return {"entries": list(results.values())}


def error_response(request: Message, error: ApiError) -> Message:
    return {
        "entries": [
            {"entity": _entity(_names(entry)), **failure(error)} for entry in request["entries"]
        ]
    }


async def _alter(
    broker: BrokerContext, names: _Names, ops: list[Message], is_validate_only: bool
) -> None:
    for key in repeated(op["key"] for op in ops):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Duplicate quota key {key} not updating quota for this entity {_text(names)}",
        )
    entity = check_entity(names)
    removed = [op["key"] for op in ops if op["remove"]]
    added = _limits(entity, ops)

    def edit(known: Mapping[str, float]) -> Mapping[str, float]:
        kept = {kind: limit for kind, limit in known.items() if kind not in removed}
        return kept | added

    await broker.controller.alter_quotas(entity, edit, validate_only=is_validate_only)


def _audit(
    broker: BrokerContext, context: RequestContext, names: _Names, ops: list[Message]
) -> None:
    limits = {op["key"]: None if op["remove"] else op["value"] for op in ops}
    broker.audit.changed(
        context.principal, context.host, "quota changed", entity=dict(names), limits=limits
    )


def _limits(entity: Entity, ops: list[Message]) -> dict[str, float]:
    return {
        op["key"]: check_limit(entity, op["key"], op["value"]) for op in ops if not op["remove"]
    }


def _names(entry: Message) -> _Names:
    """The types and names of an entity, sorted, so that equal entities compare equal.

    As in Kafka, the last name of a type applies.
    """
    return entity_of({each["entity_type"]: each["entity_name"] for each in entry["entity"]})


def _entity(names: _Names) -> list[Message]:
    return [{"entity_type": type_, "entity_name": name} for type_, name in names]


def _text(names: _Names) -> str:
    inside = ", ".join(f"{type_}={'null' if name is None else name}" for type_, name in names)
    return f"ClientQuotaEntity(entries={{{inside}}})"
