"""Settings of TLS. All of them can have the prefix of a listener: listener.name.NAME."""

from headrace.config.setting import BOOLEAN, LIST, PASSWORD, STRING, ConfigType, Setting

VERSIONS = ("TLSv1.2", "TLSv1.3")


def _row(
    name: str,
    kind: ConfigType,
    default: str | None,
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    kafka_default: str | None = None,
) -> Setting:
    return Setting(
        name,
        kind,
        default,
        doc,
        choices=choices,
        is_dynamic=True,
        is_per_broker=True,
        kafka_default=kafka_default,
    )


_BY_CONTENTS = "It has no effect, because the type is recognised by the contents of the file."

TLS_ROWS: tuple[Setting, ...] = (
    _row(
        "ssl.keystore.location",
        STRING,
        None,
        "The file with the broker's private key and its certificates: PEM, PKCS12 or JKS. The "
        "broker reloads it within 10 s after a change, or on SIGHUP.",
    ),
    _row("ssl.keystore.password", PASSWORD, None, "The password of a PKCS12 or JKS key store."),
    _row("ssl.keystore.type", STRING, "JKS", f"The type of the key store. {_BY_CONTENTS}"),
    _row("ssl.keystore.key", PASSWORD, None, "The private key in PEM, instead of a file."),
    _row(
        "ssl.keystore.certificate.chain",
        PASSWORD,
        None,
        "The certificate chain in PEM, starting with the certificate of ssl.keystore.key.",
    ),
    _row(
        "ssl.key.password",
        PASSWORD,
        None,
        "The password of the private key, in PEM or JKS.",
    ),
    _row(
        "ssl.truststore.location",
        STRING,
        None,
        "The file with the certificates of trusted CAs: PEM, PKCS12 or JKS.",
    ),
    _row("ssl.truststore.password", PASSWORD, None, "The password of a PKCS12 or JKS trust store."),
    _row("ssl.truststore.type", STRING, "JKS", f"The type of the trust store. {_BY_CONTENTS}"),
    _row(
        "ssl.truststore.certificates",
        PASSWORD,
        None,
        "The certificates of trusted CAs in PEM, instead of a file.",
    ),
    _row(
        "ssl.client.auth",
        STRING,
        "none",
        "Whether clients need a certificate: required, requested (they can send one) or none. On a "
        "SASL_SSL listener, only the setting with the listener's prefix applies.",
        choices=("required", "requested", "none"),
    ),
    _row(
        "ssl.enabled.protocols",
        LIST,
        ",".join(VERSIONS),
        "The versions of TLS that are accepted.",
        choices=VERSIONS,
    ),
    _row(
        "ssl.cipher.suites",
        LIST,
        "",
        "The cipher suites that are accepted. An empty list accepts all safe suites. The three "
        "suites of TLS 1.3 can only be enabled together.",
    ),
    _row(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        "With https, connections to other brokers verify that the certificate is for the host "
        "name. An empty value disables this check.",
    ),
    Setting(
        "ssl.principal.mapping.rules",
        STRING,
        "DEFAULT",
        "Rules that map the subject of a client's certificate to a user: DEFAULT, or "
        "RULE:pattern/replacement/ with L or U for lower or upper case, separated by commas. "
        "Patterns are RE2.",
    ),
    Setting(
        "ssl.allow.dn.changes",
        BOOLEAN,
        "false",
        "Whether a reload accepts a certificate with another subject.",
    ),
    Setting(
        "ssl.allow.san.changes",
        BOOLEAN,
        "false",
        "Whether a reload accepts a certificate that lacks a host name of the former certificate.",
    ),
)
TLS_NAMES = tuple(row.name for row in TLS_ROWS)
