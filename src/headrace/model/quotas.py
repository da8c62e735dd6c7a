"""Client quotas: entities, kinds of limits, Kafka's precedence, and checks of changes. Pure.

1. An entity is a user, a client id, both, or an IP address. The name None stands for all names of
   its type without a quota. Each of these names has the limit separately.
2. A limit is a finite number above 0. An entity can have one limit of each kind (see KINDS).
3. The precedence applies to each kind separately. For example, a user's byte rate does not override
   the record rate of a client id.
"""

import math
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import NamedTuple

from headrace.model.errors import ApiError, ErrorCode

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
PRODUCER_RECORD_RATE = "producer_record_rate"
CONSUMER_RECORD_RATE = "consumer_record_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
NAME_BYTES_MAX = 255
"""The limit of a name, because it is the name of a node in the store."""
_FRACTION_MAX = 1e-6
"""A number is considered whole if it differs by at most this, as in Kafka."""

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, sorted by type."""
Quotas = Mapping[Entity, Mapping[str, float]]


class QuotaKind(NamedTuple):
    """What a quota limits, such as the byte rate of Produce requests."""

    meaning: str
    integer_max: int = 0
    """The maximum of a kind whose values are integers; 0 for other kinds."""


CLIENT_KINDS = {
    PRODUCER_BYTE_RATE: QuotaKind("bytes per second of Produce requests", LONG_MAX),
    CONSUMER_BYTE_RATE: QuotaKind("bytes per second of Fetch responses", LONG_MAX),
    PRODUCER_RECORD_RATE: QuotaKind("produced records per second", LONG_MAX),
    CONSUMER_RECORD_RATE: QuotaKind("fetched records per second", LONG_MAX),
    REQUEST_PERCENTAGE: QuotaKind("share of the broker's processing time, in percent"),
    CONTROLLER_MUTATION_RATE: QuotaKind("created and deleted partitions per second"),
}
IP_KINDS = {CONNECTION_CREATION_RATE: QuotaKind("new connections per second", INT_MAX)}
KINDS = CLIENT_KINDS | IP_KINDS


def entity_of(names: Mapping[str, str | None]) -> Entity:
    return tuple(sorted(names.items()))


def user_entity(user: str | None) -> Entity:
    return ((USER, user),)


def precedence(user: str, client_id: str) -> tuple[tuple[Entity, Entity], ...]:
    """The entities that can limit a client; the first one with a limit applies.

    Each is paired with the entity whose usage is counted.
    """
    both = entity_of({USER: user, CLIENT_ID: client_id})
    only_user, only_client = user_entity(user), ((CLIENT_ID, client_id),)
    return (
        (both, both),
        (entity_of({USER: user, CLIENT_ID: None}), both),
        (only_user, only_user),
        (entity_of({USER: None, CLIENT_ID: client_id}), both),
        (entity_of({USER: None, CLIENT_ID: None}), both),
        (user_entity(None), only_user),
        (only_client, only_client),
        (((CLIENT_ID, None),), only_client),
    )


def limit_of(
    quotas: Quotas, order: Iterable[tuple[Entity, Entity]], kind: str
) -> tuple[float, Entity, Entity] | None:
    """The limit of one kind, the entity that has it, and the entity whose usage is counted."""
    for entity, counted in order:
        limit = quotas.get(entity, {}).get(kind)
        if limit is not None:
            return limit, entity, counted
    return None


def has_limit(quotas: Quotas, kind: str, counted: Entity) -> bool:
    """Whether a counted entity has a limit of a kind: its own, or a default."""
    entities: list[Entity] = [()]
    for type_, name in counted:
        entities = [(*each, (type_, one)) for each in entities for one in (name, None)]
    return any(kind in quotas.get(entity, {}) for entity in entities)


def address_limit(quotas: Quotas, address: str) -> float | None:
    """New connections per second of an IP address."""
    for name in (address, None):
        limit = quotas.get(((IP, name),), {}).get(CONNECTION_CREATION_RATE)
        if limit is not None:
            return limit
    return None


def check_entity(names: Iterable[tuple[str, str | None]]) -> Entity:
    """An entity that can have limits. Raises ApiError, with Kafka's message if it has one."""
    found: dict[str, str | None] = {}
    for type_, name in names:
        if type_ not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {type_}")
        if name == "":
            raise _invalid(f"Empty {type_} not supported")
        if name is not None and len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
            raise _invalid(f"The {type_} must not be longer than {NAME_BYTES_MAX} bytes.")
        found[type_] = name
    if not found:
        raise _invalid("Invalid empty client quota entity")
    if IP in found:
        if len(found) > 1:
            raise _invalid(
                "Invalid quota entity combination, IP entity should not be combined with User or "
                "ClientId"
            )
        found[IP] = _checked_address(found[IP])
    return entity_of(found)


def _checked_address(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        return address_text(name)
    except ValueError:
        raise _invalid(f"{name!r} is not a valid IP address.") from None


def address_text(host: str) -> str:
    """The canonical text of an address: IPv6 in its short form, IPv4 within IPv6 as IPv4."""
    address = ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def check_limit(entity: Entity, kind: str, value: float) -> float:
    """The limit to store. Raises ApiError, with Kafka's message if it has one."""
    kinds = IP_KINDS if entity[0][0] == IP else CLIENT_KINDS
    if kind not in kinds:
        raise _invalid(f"Invalid configuration key {kind}")
    if value <= 0:
        raise _invalid(f"Quota {kind} must be greater than 0")
    integer_max = kinds[kind].integer_max
    if integer_max and value > integer_max:
        type_ = "an INT" if integer_max == INT_MAX else "a LONG"
        raise _invalid(f"Proposed value for {kind} is too large for {type_}.")
    if not math.isfinite(value):
        raise _invalid(f"Quota {kind} must be a finite number, not {value}.")
    if not integer_max:
        return value
    if abs(value - round(value)) > _FRACTION_MAX or round(value) == 0:
        raise _invalid(f"{kind} cannot be a fractional value.")
    return float(round(value))


def limits_to_text(limits: Mapping[str, float]) -> dict[str, str]:
    """Limits in the form in which Kafka stored them: numbers as text."""
    return {
        kind: str(int(limit) if KINDS[kind].integer_max else limit)
        for kind, limit in limits.items()
    }


def limits_from_text(config: Mapping[str, str]) -> tuple[dict[str, float], list[str]]:
    """The valid limits among stored settings, and the kinds whose value is invalid."""
    limits: dict[str, float] = {}
    invalid = []
    for kind in KINDS:
        if kind not in config:
            continue
        try:
            limit = float(config[kind])
        except ValueError:
            limit = math.nan
        if math.isfinite(limit) and limit > 0:
            limits[kind] = limit
        else:
            invalid.append(kind)
    return limits, invalid


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)
