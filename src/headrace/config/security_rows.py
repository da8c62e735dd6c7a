"""Settings of authentication and authorization."""

from headrace.config.setting import BOOLEAN, INT, LIST, LONG, STRING, Setting, Value
from headrace.model.acls import principals
from headrace.model.sasl import SCRAM_SHA_256, SCRAM_SHA_512

AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)
"""Kafka's authorizers, with and without ZooKeeper. Both names enable the same one."""


def _are_principals(value: Value) -> bool:
    try:
        principals(str(value))
    except ValueError:
        return False
    return True


SECURITY_ROWS: tuple[Setting, ...] = (
    Setting(
        "sasl.enabled.mechanisms",
        LIST,
        f"{SCRAM_SHA_256},{SCRAM_SHA_512}",
        "The SASL mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, "
        "OAUTHBEARER. listener.name.NAME.sasl.enabled.mechanisms sets the mechanisms of one "
        "listener; write NAME in lower case. Without TLS, PLAIN sends passwords unencrypted.",
        kafka_default="GSSAPI",
    ),
    Setting(
        "sasl.server.max.receive.size",
        INT,
        "524288",
        "The largest request in bytes before a client has logged in. If a client announces a "
        "larger request, the broker closes the connection.",
        low=1,
    ),
    Setting(
        "connections.max.reauth.ms",
        LONG,
        "0",
        "The time in ms after which a client must log in again (KIP-368). The broker closes the "
        "connection of a client that sends another request later. 0 means no limit. "
        "listener.name.NAME.MECHANISM.connections.max.reauth.ms sets it for one mechanism of one "
        "listener; write both names in lower case.",
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        INT,
        "100",
        "The delay in ms of the response to a failed login. After 10 failures of an address "
        "within a minute, the delay is at least 5 s.",
        low=0,
    ),
    Setting(
        "authorizer.class.name",
        STRING,
        "",
        "Enables ACLs. Both names of Kafka's authorizers have the same effect. If it is empty, "
        "every client can do everything.",
        check=lambda value: value in ("", *AUTHORIZERS),
        allowed=f"empty, {AUTHORIZERS[0]} or {AUTHORIZERS[1]}",
    ),
    Setting(
        "super.users",
        STRING,
        "",
        "Principals that are allowed every operation, separated by semicolons: "
        "User:admin;User:operator. It has an effect only with authorizer.class.name.",
        check=_are_principals,
        allowed="principals such as User:admin, separated by semicolons",
    ),
    Setting(
        "allow.everyone.if.no.acl.found",
        BOOLEAN,
        "false",
        "Whether every user is allowed every operation on a resource without ACLs. It has an "
        "effect only with authorizer.class.name.",
    ),
    Setting(
        "headrace.audit.file",
        STRING,
        "",
        "The file of the audit log: one JSON object per line about each denied request, login, "
        "failed login and change of users and ACLs. If it is empty, the lines are in the log of "
        "the broker.",
    ),
)
