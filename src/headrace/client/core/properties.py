"""Reads the security settings of a client (security.protocol, sasl.* and ssl.*) from properties.

Reads a properties file, and the key and certificate files that it names. The command line, the
Spark data source, pipelines and `load_properties` use this module.
"""

import re
from collections.abc import Mapping

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
_JAAS = re.compile(r'\b(username|password|tokenauth)\s*=\s*"((?:[^"\\]|\\.)*)"')


class InvalidProperties(ValueError):
    """The properties are invalid or not supported. The message has no full stop."""


def load_properties(path: str) -> SecuritySettings:
    """The security settings in a properties file, as arguments of `connect`."""
    return security_settings(read_file(path))


def read_file(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            return read_properties(file.read())
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidProperties(f"cannot read {path}: {reason}") from None


def security_settings(properties: Mapping[str, str]) -> SecuritySettings:
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
