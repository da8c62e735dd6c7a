"""DescribeClientQuotas, versions 0 and 1: list quotas of users, client ids and IP addresses.

- Every broker responds from its image.
- A filter names a type of entity, and one name, the default, or any name. With strict, an entity
  must have no other type.
- Requires: DescribeConfigs on the cluster.
- Versions: 0 and 1.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.quotas import CLIENT_ID, IP, USER, Entity
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure
from headrace.wire.codec import Message

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_MATCH_NAMES = {_DEFAULT: "MATCH_TYPE_DEFAULT", _SPECIFIED: "MATCH_TYPE_SPECIFIED"}


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    names, types = _filter(request["components"])
    entries = [
        {
            "entity": [{"entity_type": type_, "entity_name": name} for type_, name in entity],
            "values": [{"key": kind, "value": limit} for kind, limit in sorted(limits.items())],
        }
        for entity, limits in broker.image.quotas.items()
        if _matches(entity, names, types, request["strict"])
    ]
    return {"error_message": "", "entries": entries}


def error_response(request: Message, error: ApiError) -> Message:
    return {**failure(error), "entries": None}


def _filter(components: list[Message]) -> tuple[dict[str, str | None], list[str]]:
    """The wanted name by type, and the types that can have any name."""
    names: dict[str, str | None] = {}
    types: list[str] = []
    for component in components:
        type_, match, name = component["entity_type"], component["match_type"], component["match"]
        if not type_:
            raise _invalid("Invalid empty entity type.")
        if type_ in names or type_ in types:
            raise _invalid(f"Entity type {type_} cannot appear more than once in the filter.")
        if type_ not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {type_}")
        if match not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise _invalid(f"Unknown match type {match}")
        if match == _EXACT and name is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match != _EXACT and name is not None:
            text = f"Request specified {_MATCH_NAMES[match]}, but also specified a match string."
            raise _invalid(text)
        if match == _SPECIFIED:
            types.append(type_)
        else:
            names[type_] = name
    if (IP in names or IP in types) and len(names) + len(types) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )
    return names, types


def _matches(
    entity: Entity, names: dict[str, str | None], types: list[str], is_strict: bool
) -> bool:
    has = dict(entity)
    if is_strict and len(has) != len(names) + len(types):
        return False
    return all(type_ in has for type_ in types) and all(
        type_ in has and has[type_] == name for type_, name in names.items()
    )


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)
