"""Security settings that the broker cannot honour: at the start and at run time. Pure.

An operator who sets one of them relies on its effect: on a Java class that rejects clients, or on a
name that has a typing error. At the start, they stop the broker. At run time, the broker rejects
them, and in addition all security settings without an effect.
"""

from collections.abc import Collection, Iterable, Mapping

from headrace.config.listeners import SASL_PROTOCOLS, TLS_PROTOCOLS, check_tls
from headrace.config.setting import ConfigError, shown
from headrace.config.table import broker_setting, nearest_name, unknown_name
from headrace.model.cluster import Endpoint

_KAFKA = "org.apache.kafka.common.security."
_BEARER = _KAFKA + "oauthbearer."
_VALUES: dict[str, tuple[str, ...]] = {
    "alter.config.policy.class.name": (),
    "client.quota.callback.class": (),
    "create.topic.policy.class.name": (),
    "principal.builder.class": (_KAFKA + "authenticator.DefaultKafkaPrincipalBuilder",),
    "sasl.oauthbearer.jwt.validator.class": (
        _BEARER + "DefaultJwtValidator",
        _BEARER + "BrokerJwtValidator",
    ),
    "sasl.server.callback.handler.class": (
        _BEARER + "OAuthBearerValidatorCallbackHandler",
        _BEARER + "secured.OAuthBearerValidatorCallbackHandler",
    ),
    "security.providers": (),
    "ssl.engine.factory.class": (),
    "ssl.keymanager.algorithm": ("SunX509", "PKIX"),
    "ssl.provider": (),
    "ssl.trustmanager.algorithm": ("SunX509", "PKIX"),
}
"""The values with which Kafka does the same as Headrace. All others are rejected."""
_JAAS = "sasl.jaas.config"
_PREFIX = "listener.name."
_SECURITY_PREFIXES = (
    "allow.everyone.",
    "authorizer.",
    "delegation.token.",
    _PREFIX,
    "listener.security.",
    "sasl.",
    "security.",
    "ssl.",
    "super.",
    "zookeeper.set.",
    "zookeeper.ssl.",
)


_WITHOUT_EFFECT = frozenset({"security", "limits"})
"""Missing features on which the protection of a broker can depend."""


def check_at_run_time(settings: Mapping[str, str], listeners: tuple[Endpoint, ...]) -> None:
    """Reject dynamic settings of a broker with these listeners."""
    check_values(settings)
    rows = {name: broker_setting(name) for name in settings}
    check_unknown(name for name, row in rows.items() if row is None)
    check_prefixes(settings, {endpoint.listener for endpoint in listeners})
    check_tls(lambda name: settings.get(name, "").strip().lower() not in ("", "none"), listeners)
    for name, row in rows.items():
        has_effect = row is None or not row.is_dynamic or row.needs not in _WITHOUT_EFFECT
        if not has_effect and _base(name) not in _VALUES:
            raise ConfigError(f"{shown(name)} cannot be set: it has no effect on this broker.")


def check_values(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        base = _base(name)
        accepted = _VALUES.get(base)
        if accepted is not None and value.strip() not in ("", *accepted):
            default = f" It can only be {accepted[0]}." if accepted else ""
            raise ConfigError(
                f"{shown(name)} is {shown(value)}, which is not supported.{default} Remove it."
            )
        if base == _JAAS and "PlainLoginModule" in value and "user_" in value:
            raise ConfigError(
                f"{shown(name)} defines users of PLAIN, which is not supported. Create the users "
                "with `headrace users`, and remove the setting."
            )


def check_unknown(names: Iterable[str]) -> None:
    """Reject a name with a typing error, if the setting that was meant concerns security."""
    for name in names:
        nearest = nearest_name(name, of_topic=False) or ""
        if name.startswith(_SECURITY_PREFIXES) or nearest.startswith(_SECURITY_PREFIXES):
            raise ConfigError(f"{unknown_name(name, of_topic=False)} Correct or remove it.")


def check_prefixes(names: Iterable[str], listeners: Collection[str]) -> None:
    """Reject settings of a listener that does not exist."""
    for name in names:
        if not name.startswith(_PREFIX):
            continue
        listener = name.removeprefix(_PREFIX).partition(".")[0]
        if listener.upper() not in listeners or listener != listener.lower():
            raise ConfigError(
                f"{shown(name)} is for a listener that does not exist. Use listener.name., and one "
                f"of {', '.join(sorted(map(str.lower, listeners)))}."
            )


def check_inter_broker(wanted: str, actual: str) -> None:
    """Reject security.inter.broker.protocol, if the listener between brokers has less security."""
    for feature, protocols in (("TLS", TLS_PROTOCOLS), ("SASL", SASL_PROTOCOLS)):
        if wanted in protocols and actual not in protocols:
            raise ConfigError(
                f"security.inter.broker.protocol is {wanted}, but the listener between brokers "
                f"uses no {feature}, because no other listener uses it. Change the protocol of a "
                "listener, or remove this setting."
            )


def _base(name: str) -> str:
    """The name without the prefixes of a listener and a mechanism."""
    if not name.startswith(_PREFIX):
        return name
    for base in (*_VALUES, _JAAS):
        if name.endswith("." + base):
            return base
    return name
