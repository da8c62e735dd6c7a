"""Requests of the controller to brokers: checks that one responds, and reads log end offsets."""

import logging
from collections.abc import Mapping

from headrace.cluster.peers import Peers
from headrace.controller.failover_machine import LogEnd
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.runtime.link import LinkBroken
from headrace.wire.apis import API_VERSIONS, OFFSET_FOR_LEADER_EPOCH

DEBUGGING_REPLICA_ID = -2
"""Kafka's replica id for debugging: every replica responds to it, not only the leader."""
_RESPONSE_S = 1.0
_log = logging.getLogger(__name__)


class BrokerClient:
    def __init__(self, node_id: int, peers: Peers) -> None:
        self._node_id = node_id
        self._peers = peers

    async def is_responding(self, node_id: int) -> bool:
        """Whether a broker responds within a second."""
        if node_id == self._node_id or not self._peers.has_network:
            return True
        try:
            await self._peers.call(node_id, API_VERSIONS, 0, {}, _RESPONSE_S)
        except LinkBroken:
            return False
        return True

    async def request_log_ends(
        self, node_id: int, epochs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, LogEnd]:
        """The end offsets of leader epochs in the logs of a broker, without those with errors.

        If `node_id` is this broker, the request also uses a link: its response waits until this
        broker has loaded its logs.
        """
        if not self._peers.has_network:
            return dict.fromkeys(epochs, (-1, -1))
        topics: dict[str, list[dict[str, int]]] = {}
        for (topic, index), epoch in epochs.items():
            entry = {"partition": index, "current_leader_epoch": -1, "leader_epoch": epoch}
            topics.setdefault(topic, []).append(entry)
        message = {
            "replica_id": DEBUGGING_REPLICA_ID,
            "topics": [{"topic": name, "partitions": entries} for name, entries in topics.items()],
        }
        try:
            reply = await self._peers.call(node_id, OFFSET_FOR_LEADER_EPOCH, 4, message)
        except LinkBroken as error:
            _log.warning("no log end offsets from broker: broker=%d error=%s", node_id, error)
            return {}
        return {
            TopicPartition(topic["topic"], entry["partition"]): (
                entry["leader_epoch"],
                entry["end_offset"],
            )
            for topic in reply["topics"]
            for entry in topic["partitions"]
            if entry["error_code"] == ErrorCode.NONE
        }
