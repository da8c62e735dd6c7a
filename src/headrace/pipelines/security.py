"""Security settings of a pipeline's own connections to brokers.

The settings are in the `configuration` of its specification: `headrace.config` names a file with
Kafka's client properties. Settings `kafka.security.protocol`, `kafka.sasl.*` and `kafka.ssl.*`
override the file.
"""

from collections.abc import Mapping

from headrace.client.core.options import SecuritySettings
from headrace.client.core.properties import SECURITY_NAMES, read_file, security_settings

CONFIG = "headrace.config"


def client_settings(configuration: Mapping[str, str]) -> SecuritySettings:
    """Read the settings; raises ValueError if they are invalid."""
    path = configuration.get(CONFIG)
    properties = read_file(path) if path else {}
    for name in SECURITY_NAMES:
        text = configuration.get(f"kafka.{name}")
        if text is not None:
            properties[name] = text
    return security_settings(properties)
