"""The table of supported APIs: keys, versions, listeners, first flexible version.

It does not import kio, because the broker needs this table before its first response.

1. Each row has a handler that implements all versions of its range.
2. kio has all of these versions, except Produce 0 to 2 (see that row). A test checks this.
"""

from typing import Final, NamedTuple


class Api(NamedTuple):
    key: int
    name: str
    version_min: int
    version_max: int
    flexible_since: int
    schema: str
    """The name of the package in kio, and of the module in `handlers`."""
    is_internal: bool = False
    """Served only on the listener for brokers, and not advertised."""

    def serves(self, version: int) -> bool:
        """Whether the broker processes requests of this version."""
        lowest = PRODUCE_VERSION_SERVED_MIN if self.key == PRODUCE else self.version_min
        return lowest <= version <= self.version_max

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_since


PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
DESCRIBE_ACLS: Final = 29
CREATE_ACLS: Final = 30
DELETE_ACLS: Final = 31
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
ALTER_REPLICA_LOG_DIRS: Final = 34
DESCRIBE_LOG_DIRS: Final = 35
SASL_AUTHENTICATE: Final = 36
CREATE_PARTITIONS: Final = 37
CREATE_DELEGATION_TOKEN: Final = 38
RENEW_DELEGATION_TOKEN: Final = 39
EXPIRE_DELEGATION_TOKEN: Final = 40
DESCRIBE_DELEGATION_TOKEN: Final = 41
DELETE_GROUPS: Final = 42
ELECT_LEADERS: Final = 43
INCREMENTAL_ALTER_CONFIGS: Final = 44
ALTER_PARTITION_REASSIGNMENTS: Final = 45
LIST_PARTITION_REASSIGNMENTS: Final = 46
OFFSET_DELETE: Final = 47
DESCRIBE_CLIENT_QUOTAS: Final = 48
ALTER_CLIENT_QUOTAS: Final = 49
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = 50
ALTER_USER_SCRAM_CREDENTIALS: Final = 51
ALTER_PARTITION: Final = 56
ENVELOPE: Final = 58
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_PRODUCERS: Final = 61
BROKER_HEARTBEAT: Final = 63
ALLOCATE_PRODUCER_IDS: Final = 67
CONSUMER_GROUP_HEARTBEAT: Final = 68
CONSUMER_GROUP_DESCRIBE: Final = 69
ASSIGN_REPLICAS_TO_DIRS: Final = 73
LIST_CONFIG_RESOURCES: Final = 74
DESCRIBE_TOPIC_PARTITIONS: Final = 75

PRODUCE_VERSION_SERVED_MIN: Final = 3
"""Lower versions of Produce are advertised, but rejected."""

_ROWS = (
    # Produce 0 to 2 use message formats from before 2017 and are rejected. They are advertised,
    # because librdkafka before 2.11.1 compresses only if version 0 is supported (KAFKA-18659).
    Api(PRODUCE, "Produce", 0, 13, 9, "produce"),
    Api(FETCH, "Fetch", 4, 18, 12, "fetch"),
    Api(LIST_OFFSETS, "ListOffsets", 1, 11, 6, "list_offsets"),
    Api(METADATA, "Metadata", 0, 13, 9, "metadata"),
    # Version 10 of the following two APIs identifies topics by id only.
    Api(OFFSET_COMMIT, "OffsetCommit", 2, 10, 8, "offset_commit"),
    Api(OFFSET_FETCH, "OffsetFetch", 1, 10, 6, "offset_fetch"),
    # librdkafka compresses with lz4 only if this API is advertised.
    Api(FIND_COORDINATOR, "FindCoordinator", 0, 6, 3, "find_coordinator"),
    # librdkafka before 2.11 supports groups only if version 0 is advertised (KAFKA-19444).
    Api(JOIN_GROUP, "JoinGroup", 0, 9, 6, "join_group"),
    Api(HEARTBEAT, "Heartbeat", 0, 4, 4, "heartbeat"),
    Api(LEAVE_GROUP, "LeaveGroup", 0, 5, 4, "leave_group"),
    Api(SYNC_GROUP, "SyncGroup", 0, 5, 4, "sync_group"),
    Api(DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5, "describe_groups"),
    Api(LIST_GROUPS, "ListGroups", 0, 5, 3, "list_groups"),
    # As in Kafka, listeners without SASL also advertise this API and SaslAuthenticate.
    Api(SASL_HANDSHAKE, "SaslHandshake", 0, 1, 2, "sasl_handshake"),
    Api(API_VERSIONS, "ApiVersions", 0, 4, 3, "api_versions"),
    Api(CREATE_TOPICS, "CreateTopics", 2, 7, 5, "create_topics"),
    Api(DELETE_TOPICS, "DeleteTopics", 1, 6, 4, "delete_topics"),
    Api(DELETE_RECORDS, "DeleteRecords", 0, 2, 2, "delete_records"),
    # kio also has version 6, for two-phase commit (KIP-939). It is unstable in Kafka.
    Api(INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2, "init_producer_id"),
    Api(OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4, "offset_for_leader_epoch"),
    Api(DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2, "describe_acls"),
    Api(CREATE_ACLS, "CreateAcls", 1, 3, 2, "create_acls"),
    Api(DELETE_ACLS, "DeleteAcls", 1, 3, 2, "delete_acls"),
    Api(DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4, "describe_configs"),
    Api(ALTER_CONFIGS, "AlterConfigs", 0, 2, 2, "alter_configs"),
    Api(ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", 1, 2, 2, "alter_replica_log_dirs"),
    Api(DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5, 2, "describe_log_dirs"),
    Api(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2, "sasl_authenticate"),
    Api(CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2, "create_partitions"),
    Api(CREATE_DELEGATION_TOKEN, "CreateDelegationToken", 1, 3, 2, "create_delegation_token"),
    Api(RENEW_DELEGATION_TOKEN, "RenewDelegationToken", 1, 2, 2, "renew_delegation_token"),
    Api(EXPIRE_DELEGATION_TOKEN, "ExpireDelegationToken", 1, 2, 2, "expire_delegation_token"),
    Api(DESCRIBE_DELEGATION_TOKEN, "DescribeDelegationToken", 1, 3, 2, "describe_delegation_token"),
    Api(DELETE_GROUPS, "DeleteGroups", 0, 2, 2, "delete_groups"),
    Api(ELECT_LEADERS, "ElectLeaders", 0, 2, 2, "elect_leaders"),
    Api(INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1, "incremental_alter_configs"),
    Api(
        ALTER_PARTITION_REASSIGNMENTS,
        "AlterPartitionReassignments",
        0,
        1,
        0,
        "alter_partition_reassignments",
    ),
    Api(
        LIST_PARTITION_REASSIGNMENTS,
        "ListPartitionReassignments",
        0,
        0,
        0,
        "list_partition_reassignments",
    ),
    Api(OFFSET_DELETE, "OffsetDelete", 0, 0, 1, "offset_delete"),
    Api(DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1, 1, "describe_client_quotas"),
    Api(ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 1, 1, "alter_client_quotas"),
    Api(
        DESCRIBE_USER_SCRAM_CREDENTIALS,
        "DescribeUserScramCredentials",
        0,
        0,
        0,
        "describe_user_scram_credentials",
    ),
    Api(
        ALTER_USER_SCRAM_CREDENTIALS,
        "AlterUserScramCredentials",
        0,
        0,
        0,
        "alter_user_scram_credentials",
    ),
    # Version 2 has no broker epochs of the ISR, so a restarted broker could be added to it (B6).
    Api(ALTER_PARTITION, "AlterPartition", 3, 3, 0, "alter_partition", is_internal=True),
    Api(ENVELOPE, "Envelope", 0, 0, 0, "envelope", is_internal=True),
    Api(DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0, "describe_cluster"),
    Api(DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0, "describe_producers"),
    Api(BROKER_HEARTBEAT, "BrokerHeartbeat", 0, 2, 0, "broker_heartbeat", is_internal=True),
    Api(
        ALLOCATE_PRODUCER_IDS,
        "AllocateProducerIds",
        0,
        0,
        0,
        "allocate_producer_ids",
        is_internal=True,
    ),
    Api(CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1, 0, "consumer_group_heartbeat"),
    Api(CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1, 0, "consumer_group_describe"),
    Api(
        ASSIGN_REPLICAS_TO_DIRS,
        "AssignReplicasToDirs",
        0,
        0,
        0,
        "assign_replicas_to_dirs",
        is_internal=True,
    ),
    Api(LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, 0, "list_config_resources"),
    Api(DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0, "describe_topic_partitions"),
)

APIS: dict[int, Api] = {api.key: api for api in _ROWS}

CONTROLLER_APIS: Final = frozenset(
    (
        ALTER_CLIENT_QUOTAS,
        ALTER_CONFIGS,
        ALTER_PARTITION_REASSIGNMENTS,
        ALTER_USER_SCRAM_CREDENTIALS,
        CREATE_ACLS,
        CREATE_DELEGATION_TOKEN,
        CREATE_PARTITIONS,
        CREATE_TOPICS,
        DELETE_ACLS,
        DELETE_TOPICS,
        ELECT_LEADERS,
        EXPIRE_DELEGATION_TOKEN,
        INCREMENTAL_ALTER_CONFIGS,
        RENEW_DELEGATION_TOKEN,
    )
)
"""Requests of clients that only the controller can execute. Other brokers forward them."""
