"""Settings of authentication."""

from headrace.config.setting import INT, LIST, Setting
from headrace.model.sasl import SCRAM_SHA_256, SCRAM_SHA_512

SECURITY_ROWS: tuple[Setting, ...] = (
    Setting(
        "sasl.enabled.mechanisms",
        LIST,
        f"{SCRAM_SHA_256},{SCRAM_SHA_512}",
        "The SASL mechanisms of listeners that use SASL_PLAINTEXT: PLAIN, SCRAM-SHA-256, "
        "SCRAM-SHA-512. listener.name.NAME.sasl.enabled.mechanisms sets those of one listener, "
        "with its name in lower case. PLAIN sends passwords unencrypted.",
        kafka_default="GSSAPI",
    ),
    Setting(
        "sasl.server.max.receive.size",
        INT,
        "524288",
        "The largest request in bytes before a client has logged in. The broker closes a "
        "connection that announces a larger one.",
        low=1,
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        INT,
        "100",
        "The delay in ms of the response to a failed login. After 10 failures of an address "
        "within a minute, the delay is at least 5 s.",
        low=0,
    ),
)
