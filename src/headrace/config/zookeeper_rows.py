"""Settings of the connection to ZooKeeper: credentials, node ACLs and TLS."""

from headrace.config.setting import BOOLEAN, LIST, PASSWORD, STRING, Setting

TLS_PROTOCOLS = ("TLSv1.2", "TLSv1.3")

ZOOKEEPER_ROWS: tuple[Setting, ...] = (
    Setting(
        "headrace.zookeeper.digest.file",
        STRING,
        None,
        "A file with one line, USER:PASSWORD, with which this broker logs in to ZooKeeper. Only "
        "its owner may have access to it (mode 0600). All brokers of a cluster use the same line.",
    ),
    Setting(
        "zookeeper.set.acl",
        BOOLEAN,
        "false",
        "Whether nodes that this broker creates in ZooKeeper can be changed only with the "
        "credentials in headrace.zookeeper.digest.file. Users, secrets and settings of brokers "
        "cannot be read without them either.",
    ),
    Setting(
        "zookeeper.ssl.client.enable",
        BOOLEAN,
        "false",
        "Whether connections to ZooKeeper use TLS.",
    ),
    Setting(
        "zookeeper.ssl.truststore.location",
        STRING,
        None,
        "A PEM file with the certificates of the authorities that signed ZooKeeper's "
        "certificates. The default is the system's certificate authorities.",
    ),
    Setting(
        "zookeeper.ssl.truststore.type",
        STRING,
        "PEM",
        "The format of zookeeper.ssl.truststore.location. Only PEM is supported.",
        choices=("PEM",),
        kafka_default="(none)",
    ),
    Setting(
        "zookeeper.ssl.keystore.location",
        STRING,
        None,
        "A PEM file with a private key and its certificates, if ZooKeeper requires a certificate "
        "of its clients.",
    ),
    Setting(
        "zookeeper.ssl.keystore.type",
        STRING,
        "PEM",
        "The format of zookeeper.ssl.keystore.location. Only PEM is supported.",
        choices=("PEM",),
        kafka_default="(none)",
    ),
    Setting(
        "zookeeper.ssl.keystore.password",
        PASSWORD,
        None,
        "The password of the private key in zookeeper.ssl.keystore.location.",
    ),
    Setting(
        "zookeeper.ssl.endpoint.identification.algorithm",
        STRING,
        "HTTPS",
        "HTTPS verifies that ZooKeeper's certificate is for the host in zookeeper.connect. An "
        "empty value disables this check.",
        choices=("HTTPS", "https", ""),
    ),
    Setting(
        "zookeeper.ssl.enabled.protocols",
        LIST,
        None,
        "The versions of TLS for connections to ZooKeeper. The default is "
        "zookeeper.ssl.protocol, or TLSv1.2 and TLSv1.3 if that is not set.",
        choices=TLS_PROTOCOLS,
    ),
    Setting(
        "zookeeper.ssl.protocol",
        STRING,
        None,
        "The version of TLS for connections to ZooKeeper, if zookeeper.ssl.enabled.protocols is "
        "not set.",
        choices=TLS_PROTOCOLS,
        kafka_default="TLSv1.2",
    ),
)
