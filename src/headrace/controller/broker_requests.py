"""Serves requests of brokers: ISR changes, controlled shutdown, producer ids, failed disks.

Checks each request, converts it to a decision, and the result to a response. The requests come from
other brokers, over links, and from the broker of this controller.

1. A request is rejected if it is not from the registered incarnation of its broker (B6).
2. The rejection of an AlterPartition request is final: no copy of it can succeed later (B5).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from headrace.cluster.live_image import LiveImage
from headrace.controller import failover_machine as machine
from headrace.controller.admin import Admin
from headrace.controller.failover import Failover, Handover
from headrace.controller.failover_machine import IsrChange
from headrace.controller.fenced_writer import FencedWriter
from headrace.controller.state_writer import States, StateWriter
from headrace.coordination.port import StoreUnavailable
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import PartitionState, TopicPartition
from headrace.wire.apis import (
    ALLOCATE_PRODUCER_IDS,
    ALTER_PARTITION,
    ASSIGN_REPLICAS_TO_DIRS,
    BROKER_HEARTBEAT,
)

_ISR_SIZE_WITHOUT_CHECK = 2
"""If the requested ISR is smaller, the controller first checks that other brokers respond."""
Message = dict[str, Any]


class BrokerRequests:
    def __init__(
        self,
        live_image: LiveImage,
        writer: FencedWriter,
        states: StateWriter,
        failover: Failover,
        admin: Admin,
        is_responding: Callable[[int], Awaitable[bool]],
        reaches_no_majority: Callable[[], bool],
    ) -> None:
        self._is_responding = is_responding
        self._reaches_no_majority = reaches_no_majority
        self._live_image = live_image
        self._image = live_image.image
        self._writer = writer
        self._states = states
        self._failover = failover
        self._admin = admin

    async def serve(self, api_key: int, request: Message) -> Message:
        """The response, which can contain an error. Raises only for an internal error."""
        try:
            await self._check_sender(request)
            match api_key:
                case _ if api_key == ALTER_PARTITION:
                    return await self._alter_partition(request)
                case _ if api_key == BROKER_HEARTBEAT:
                    return await self._heartbeat(request)
                case _ if api_key == ALLOCATE_PRODUCER_IDS:
                    first, count = await self._admin.run_to_end(
                        self._admin.allocate_producer_ids(0)
                    )
                    return {"producer_id_start": first, "producer_id_len": count}
                case _ if api_key == ASSIGN_REPLICAS_TO_DIRS:
                    return await self._note_offline_logs(request)
            raise ValueError(f"the controller does not serve the API key {api_key}")
        except ApiError as error:
            return {"error_code": error.code}

    async def _check_sender(self, request: Message) -> None:
        if not self._writer.role.is_controller:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        info = self._image.brokers.get(request["broker_id"])
        if info is None or info.epoch < request["broker_epoch"]:
            # The broker might have registered after the image was read.
            try:
                await self._live_image.read_brokers()
            except StoreUnavailable:
                raise ApiError(ErrorCode.NOT_CONTROLLER) from None
            info = self._image.brokers.get(request["broker_id"])
        if info is None or info.epoch != request["broker_epoch"]:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)

    async def _alter_partition(self, request: Message) -> Message:
        responding = await self._responding(request)

        def decide(states: States) -> tuple[list[Message], list[Handover]]:
            handovers: list[Handover] = []
            topics = [
                self._alter_topic(states, request, topic, responding, handovers)
                for topic in request["topics"]
            ]
            return topics, handovers

        topics, handovers = await self._states.edit(decide)
        self._failover.record_handovers(handovers)
        if any(self._is_reassigning(topic) for topic in request["topics"]):
            self._failover.run_soon()
        return {"topics": topics}

    def _is_reassigning(self, topic: Message) -> bool:
        """Whether the request has a partition whose reassignment might be complete now."""
        known = self._image.topics.get(self._image.names_by_id.get(topic["topic_id"], ""))
        return known is not None and any(
            state.adding or state.removing
            for part in topic["partitions"]
            for state in known.partitions[part["partition_index"] :][:1]
        )

    async def _responding(self, request: Message) -> Collection[int]:
        """Query the brokers that could replace a leader; return those that respond.

        - If the leader hands over, because it requests an ISR without itself: the members that the
          request keeps.
        - If the requested ISR is smaller than min.insync.replicas, or has only one member: the
          members that the request removes. If none of them responds, this controller might be
          isolated. It then makes no decision.
        """
        wanted: dict[int, None] = {}
        for topic in request["topics"]:
            known = self._image.topics.get(self._image.names_by_id.get(topic["topic_id"], ""))
            if known is None:
                continue
            min_insync = self._failover.min_insync(known)
            for part in topic["partitions"]:
                state = self._image.partition(known.name, part["partition_index"])
                kept = [member["broker_id"] for member in part["new_isr_with_epochs"]]
                if state is not None and request["broker_id"] not in kept:
                    wanted.update(dict.fromkeys(n for n in state.isr if n in kept))
                elif state is not None and len(kept) < max(min_insync, _ISR_SIZE_WITHOUT_CHECK):
                    wanted.update(dict.fromkeys(n for n in state.isr if n not in kept))
        responses = await asyncio.gather(*(self._is_responding(node) for node in wanted))
        if wanted and not any(responses) and self._reaches_no_majority():
            # This controller is probably isolated. If it accepted the change, the leader would be
            # the only member of the ISR, and the other brokers could not elect another leader.
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return [
            node for node, is_responding in zip(wanted, responses, strict=True) if is_responding
        ]

    def _alter_topic(
        self,
        states: States,
        request: Message,
        topic: Message,
        responding: Collection[int],
        handovers: list[Handover],
    ) -> Message:
        name = self._image.names_by_id.get(topic["topic_id"])
        entries = []
        for part in topic["partitions"]:
            entry: Message = {"partition_index": part["partition_index"]}
            entries.append(entry)
            if name is None:
                entry["error_code"] = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            partition = TopicPartition(name, part["partition_index"])
            state = states.get(*partition)
            if state is None:
                entry["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            change = IsrChange(
                request["broker_id"],
                part["leader_epoch"],
                part["partition_epoch"],
                tuple((m["broker_id"], m["broker_epoch"]) for m in part["new_isr_with_epochs"]),
            )
            entry.update(self._alter(states, partition, state, change, responding, handovers))
        return {"topic_id": topic["topic_id"], "partitions": entries}

    def _alter(
        self,
        states: States,
        partition: TopicPartition,
        state: PartitionState,
        change: IsrChange,
        responding: Collection[int],
        handovers: list[Handover],
    ) -> Message:
        offline = self._failover.brokers_with_offline_log(partition)
        after = machine.alter_isr(state, change, self._failover.live(), offline)
        if isinstance(after, ErrorCode):
            if after is ErrorCode.INELIGIBLE_REPLICA:
                states.put(*partition, machine.with_next_partition_epoch(state))
            return {"error_code": after}
        if after.leader != state.leader:
            elected = machine.elect_responding(after, responding)
            if elected is None:
                states.put(*partition, machine.with_next_partition_epoch(state))
                return {"error_code": ErrorCode.INELIGIBLE_REPLICA}
            after = elected
        if after is not state and after.leader == state.leader:
            handover = self._failover.better_leader(partition, state, change, responding)
            if handover is not None:
                handovers.append(handover)
                states.put(*partition, handover.after)
                return {"error_code": ErrorCode.FENCED_LEADER_EPOCH}
        if after is not state:
            states.put(*partition, after)
        return {
            "leader_id": after.leader,
            "leader_epoch": after.leader_epoch,
            "isr": list(after.isr),
            "partition_epoch": after.partition_epoch,
        }

    async def _heartbeat(self, request: Message) -> Message:
        reply = {"is_caught_up": True, "is_fenced": False, "should_shut_down": False}
        if request["want_shut_down"]:
            node_id, epoch = request["broker_id"], request["broker_epoch"]
            reply["should_shut_down"] = await self._failover.controlled_shutdown(node_id, epoch)
        return reply

    async def _note_offline_logs(self, request: Message) -> Message:
        directories = [
            {
                "id_": directory["id_"],
                "topics": self._for_each_partition(
                    directory["topics"],
                    lambda partition: self._failover.note_offline_log(
                        partition, request["broker_id"], request["broker_epoch"]
                    ),
                ),
            }
            for directory in request["directories"]
        ]
        await self._failover.fit_to_live()
        return {"directories": directories}

    def _for_each_partition(
        self, topics: list[Message], do: Callable[[TopicPartition], None]
    ) -> list[Message]:
        responses = []
        for topic in topics:
            name = self._image.names_by_id.get(topic["topic_id"])
            if name is not None:
                for part in topic["partitions"]:
                    do(TopicPartition(name, part["partition_index"]))
            code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
            responses.append(
                {
                    "topic_id": topic["topic_id"],
                    "partitions": [
                        {"partition_index": part["partition_index"], "error_code": code}
                        for part in topic["partitions"]
                    ],
                }
            )
        return responses
