"""The table of all settings: finds a row by its name, and the known name nearest to a wrong one.

1. A name is unique among the topic rows, and among the broker rows.
2. The broker's default for a topic row has the type and the limits of that row.
3. The cost of looking up a wrong name does not depend on its length, because clients choose it.
"""

from functools import cache

from headrace.config.accepted_rows import accepted_rows
from headrace.config.broker_rows import IDENTITY_AND_NETWORK_ROWS, OWN_ROWS, TOPIC_AND_LOG_ROWS
from headrace.config.cluster_rows import CLUSTER_ROWS, GROUP_ROWS, TRANSACTION_ROWS
from headrace.config.oauth_rows import OAUTH_ROWS
from headrace.config.security_rows import SECURITY_ROWS
from headrace.config.setting import Setting, shown
from headrace.config.tls_rows import TLS_NAMES, TLS_ROWS
from headrace.config.token_rows import TOKEN_ROWS
from headrace.config.topic_rows import TOPIC_ROWS
from headrace.config.zookeeper_rows import ZOOKEEPER_ROWS

NAME_LENGTH_MAX = 128
_SIMILARITY_MIN = 0.55

_PREFIXES = {
    "listener.name.": "security",
    "config.providers.": "jvm",
    "rsm.config.": "tiered",
    "rlmm.config.": "tiered",
}
"""Kafka accepts any names with these prefixes."""

_MECHANISM_NAMES = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)
"""Settings that can have two prefixes: the listener, then the SASL mechanism."""


_PER_LISTENER = ("sasl.enabled.mechanisms", "connections.max.reauth.ms", *TLS_NAMES)
"""Settings that have an effect after a listener's prefix."""


def _broker_default(row: Setting, name: str) -> Setting:
    """The broker row for the default of a topic row."""
    # If a setting with a larger unit exists (log.retention.hours), that row has the default.
    has_coarser = len(row.synonyms) > 1
    return Setting(
        name,
        row.kind,
        None if has_coarser else row.default,
        f"The default of {row.name} for topics. {row.doc}",
        low=row.low,
        high=row.high,
        choices=row.choices,
        check=row.check,
        allowed=row.allowed_text,
        needs=row.needs,
        is_dynamic=True,
    )


TOPIC_SETTINGS: dict[str, Setting] = {row.name: row for row in TOPIC_ROWS}

_OWN_BROKER_SETTINGS: dict[str, Setting] = {
    row.name: row
    for rows in (
        IDENTITY_AND_NETWORK_ROWS,
        TOPIC_AND_LOG_ROWS,
        OWN_ROWS,
        GROUP_ROWS,
        TRANSACTION_ROWS,
        CLUSTER_ROWS,
        SECURITY_ROWS,
        OAUTH_ROWS,
        TOKEN_ROWS,
        ZOOKEEPER_ROWS,
        TLS_ROWS,
        (_broker_default(row, row.synonyms[0][0]) for row in TOPIC_ROWS if row.synonyms),
    )
    for row in rows
}

BROKER_SYNONYMS: dict[str, tuple[str, ...]] = {
    row.synonyms[0][0]: tuple(name for name, _ in row.synonyms)
    for row in TOPIC_ROWS
    if len(row.synonyms) > 1
}
"""The names of a broker setting, strongest first, beginning with itself."""


@cache
def broker_settings() -> dict[str, Setting]:
    """All rows of the broker, by name, sorted."""
    rows = {row.name: row for row in accepted_rows()} | _OWN_BROKER_SETTINGS
    return dict(sorted(rows.items()))


def broker_setting(name: str) -> Setting | None:
    """The row of a name, which can have the prefix of a listener or a plug-in; None if unknown."""
    row = _OWN_BROKER_SETTINGS.get(name) or broker_settings().get(name)
    return row if row is not None else _prefixed_setting(name)


def topic_setting(name: str) -> Setting | None:
    return TOPIC_SETTINGS.get(name)


def _prefixed_setting(name: str) -> Setting | None:
    for prefix, feature in _PREFIXES.items():
        if name.startswith(prefix) and len(name) <= NAME_LENGTH_MAX:
            base = _base_setting(name) if prefix == "listener.name." else None
            if base is None and prefix == "listener.name.":
                return None
            like = base or broker_settings()["security.providers"]
            return Setting(
                name,
                like.kind,
                None,
                like.doc,
                low=like.low,
                high=like.high,
                choices=like.choices,
                needs="" if base and base.name in _PER_LISTENER else feature,
                is_dynamic=like.is_dynamic,
                is_per_broker=True,
            )
    return None


def _base_setting(name: str) -> Setting | None:
    """The base setting of a name such as ``listener.name.internal.ssl.key.password``."""
    base = name.split(".", 3)[-1]
    for mechanism_name in _MECHANISM_NAMES:
        if base.endswith("." + mechanism_name):
            base = mechanism_name
    return broker_settings().get(base)


def unknown_name(name: str, *, of_topic: bool) -> str:
    """A sentence about an unknown name, with the nearest known one."""
    kind = "topic" if of_topic else "broker"
    nearest = nearest_name(name, of_topic=of_topic)
    hint = f" Did you mean {nearest}?" if nearest else ""
    return f"{shown(name)} is not a {kind} setting.{hint}"


def nearest_name(name: str, *, of_topic: bool) -> str | None:
    if len(name) > NAME_LENGTH_MAX:
        return None
    wanted = _pairs(name.lower())
    best, best_similarity = None, _SIMILARITY_MIN
    for candidate, pairs in _pairs_by_name(of_topic).items():
        similarity = 2 * len(wanted & pairs) / (len(wanted) + len(pairs) or 1)
        if similarity > best_similarity:
            best, best_similarity = candidate, similarity
    return best


@cache
def _pairs_by_name(of_topic: bool) -> dict[str, frozenset[str]]:
    settings = TOPIC_SETTINGS if of_topic else broker_settings()
    return {name: _pairs(name) for name, row in settings.items() if not row.is_hidden}


def _pairs(name: str) -> frozenset[str]:
    """The pairs of adjacent letters. Comparing them is faster than computing edit distances."""
    return frozenset(name[at : at + 2] for at in range(len(name) - 1))
