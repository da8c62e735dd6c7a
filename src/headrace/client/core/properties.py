"""Reads the security settings of a client (security.protocol, sasl.* and ssl.*) from properties.

Reads a properties file, and the key and certificate files that it names. The command line, the
Spark data source, pipelines and `load_properties` use this module.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from headrace.client.core.options import SecuritySettings
from headrace.config.properties import read_properties
from headrace.config.setting import ConfigError
from headrace.env.key_memory import load_key
from headrace.model.sasl import MECHANISMS, SCRAM_SHA_256
from headrace.security.tls import TlsError, client_context, read_tls

PROTOCOLS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
SASL_NAMES = ("sasl.mechanism", "sasl.username", "sasl.password", "sasl.jaas.config")
TLS_NAMES = (
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
    "ssl.truststore.certificates",
    "ssl.enabled.protocols",
    "ssl.protocol",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
    "ssl.provider",
)
SECURITY_NAMES = ("security.protocol", *SASL_NAMES, *TLS_NAMES)
_WITHOUT_EFFECT = (
    "sasl.client.callback.handler.class",
    "sasl.kerberos.",
    "sasl.login.",
    "sasl.oauthbearer.",
    "security.providers",
    "ssl.keymanager.algorithm",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
)
"""Names of Java clients that do not change how this client connects."""
_NAMES_OF_LIBRDKAFKA = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.location",
    "ssl.key.pem": "ssl.keystore.key",
}
_LIKENESS_MIN = 0.85
_JAAS = re.compile(r'\b(username|password|tokenauth)\s*=\s*"((?:[^"\\]|\\.)*)"')


class InvalidProperties(ValueError):
    """The properties are invalid or not supported. The message has no full stop."""


def load_properties(path: str) -> SecuritySettings:
    """The security settings in a properties file, as arguments of `connect`."""
    return security_settings(read_file(path))


def read_file(path: str) -> dict[str, str]:
    """The properties in a file. Those that do not concern security can be of any client."""
    try:
        with open(path, encoding="utf-8") as file:
            properties = read_properties(file.read())
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidProperties(f"cannot read {path}: {reason}") from None
    for name in properties:
        _check_name(name)
    return properties


def _check_name(name: str) -> None:
    """Reject a name with a typing error: the client would connect with less security."""
    if name in SECURITY_NAMES or name.startswith(_WITHOUT_EFFECT):
        return
    nearest = _NAMES_OF_LIBRDKAFKA.get(name)
    if nearest is None:
        close = get_close_matches(name.lower(), SECURITY_NAMES, 1, _LIKENESS_MIN)
        nearest = close[0] if close else ""
    if nearest or name.startswith(("security.", "sasl.", "ssl.")):
        hint = f"; did you mean {nearest}?" if nearest else ". Remove it"
        raise InvalidProperties(f"unknown property {name!r}{hint}")


def security_settings(properties: Mapping[str, str]) -> SecuritySettings:
    if "security.protocol" not in properties:
        for name in SECURITY_NAMES:
            if properties.get(name):
                raise InvalidProperties(
                    f"{name} has no effect without security.protocol. Set it to one of "
                    f"{', '.join(PROTOCOLS)}"
                )
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidProperties(
            f"security.protocol is {protocol}, which is not supported. Use one of "
            f"{', '.join(PROTOCOLS)}"
        )
    settings: SecuritySettings = {}
    if protocol.startswith("SASL_"):
        settings.update(_login(properties))
    if protocol.endswith("SSL"):
        try:
            tls = read_tls(properties.get, _contents)
            settings["ssl"] = client_context(tls, load_key)
        except TlsError as error:
            raise InvalidProperties(str(error)) from None
    return settings


def _login(properties: Mapping[str, str]) -> SecuritySettings:
    mechanism = properties.get("sasl.mechanism", SCRAM_SHA_256)
    if mechanism not in MECHANISMS:
        raise InvalidProperties(
            f"sasl.mechanism is {mechanism}, which is not supported. Use {', '.join(MECHANISMS)}"
        )
    in_jaas = dict(_JAAS.findall(properties.get("sasl.jaas.config", "")))
    user = properties.get("sasl.username") or _unescaped(in_jaas.get("username", ""))
    password = properties.get("sasl.password") or _unescaped(in_jaas.get("password", ""))
    if not user or not password:
        raise InvalidProperties(
            "sasl.username or sasl.password is missing. Set both, or sasl.jaas.config"
        )
    settings: SecuritySettings = {
        "sasl_username": user,
        "sasl_password": password,
        "sasl_mechanism": mechanism,
    }
    if in_jaas.get("tokenauth", "").lower() == "true":
        settings["sasl_token"] = True
    return settings


def _unescaped(text: str) -> str:
    """A value of sasl.jaas.config without its escapes."""
    return re.sub(r"\\(.)", r"\1", text)


def _contents(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
