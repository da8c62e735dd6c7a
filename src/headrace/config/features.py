"""Which parts of the broker exist, for the settings that wait for one of them.

A row of the table with ``needs`` is honoured as soon as its feature is in BUILT, and until then
accepted without effect. Building a feature flips its settings here, in one place.
"""

BUILT: frozenset[str] = frozenset(
    {"balancing", "cluster", "compaction", "groups", "kip848", "replication"}
)

FEATURES = {
    "compaction": "log compaction is not built yet",
    "groups": "consumer groups are not built yet",
    "kip848": "the newer protocol of consumer groups (KIP-848) is not built yet",
    "transactions": "transactions are not built yet",
    "replication": "replication is not built yet, every partition has one replica",
    "cluster": "clusters are not built yet, a broker keeps its state in a store of its own",
    "balancing": "leadership is not balanced by itself yet",
    "security": "TLS, SASL and access control are not built yet",
    "quotas": "quotas are not built yet",
    "limits": "this limit is not built yet",
    "share": "share groups are not built yet",
    "streams": "the streams rebalance protocol is not built yet",
    "directories": "a broker has one data directory",
    "insides": "it tunes the insides of Apache Kafka",
    "jvm": "it is about Java classes or JVM metrics",
    "kraft": "there is no Raft quorum, the controller keeps its state in the store",
    "legacy": "it belongs to older versions of Apache Kafka",
    "preallocation": "segment files grow as they are written, preallocating them gains nothing",
    "threads": "one event loop does the work, there is no pool of this kind",
    "tiered": "there is no tiered storage",
}
"""Each feature, and why a setting that needs it has no effect while it is missing."""
