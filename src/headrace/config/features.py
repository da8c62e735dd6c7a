"""What Apache Kafka has and this broker has not, for the settings that mean nothing without it.

A row of the table with ``needs`` is accepted without effect, for the reason that is given here.
"""

MISSING = {
    "transactions": "transactions are not built yet",
    "security": "TLS, SASL and access control are not built yet",
    "quotas": "of the quotas there is only quota.producer.default",
    "limits": "this limit is not built yet",
    "share": "share groups are not built yet",
    "streams": "the streams rebalance protocol is not built yet",
    "links": "brokers dial each other with time limits of their own",
    "directories": "a broker has one data directory",
    "insides": "it tunes the insides of Apache Kafka",
    "jvm": "it is about Java classes or JVM metrics",
    "kraft": "there is no Raft quorum, the controller keeps its state in the store",
    "legacy": "it belongs to older versions of Apache Kafka",
    "preallocation": "segment files grow as they are written, preallocating them gains nothing",
    "threads": "one event loop does the work, there is no pool of this kind",
    "tiered": "there is no tiered storage",
}
