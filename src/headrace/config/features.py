"""The reasons why some settings of Apache Kafka have no effect: the features that Headrace lacks.

The field ``needs`` of a row without effect is a key of this table.
"""

MISSING = {
    "transactions": "transactions are not supported yet",
    "security": "Kerberos, JAAS, Java's security classes and some OAuth settings are not supported",
    "quotas": "quotas are applied without windows of time and without callbacks",
    "limits": "limits of this kind are not supported yet",
    "share": "share groups are not supported yet",
    "streams": "the streams rebalance protocol is not supported yet",
    "links": "connections between brokers have their own time limits",
    "directories": "a broker has one data directory",
    "internals": "it tunes internals of Apache Kafka",
    "jvm": "it configures Java classes or JVM metrics",
    "kraft": "Headrace has no Raft quorum; the controller keeps its state in the store",
    "legacy": "it belongs to older versions of Apache Kafka",
    "preallocation": "segment files grow as they are written; preallocation brings no benefit",
    "threads": "one event loop does the work; Headrace has no such thread pool",
    "tiered": "tiered storage is not supported",
}
