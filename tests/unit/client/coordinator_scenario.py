"""Group coordinators with scripted responses, for the client's engine and a virtual clock."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from headrace.client.core.options import GroupSettings
from headrace.client.member.classic_member import ClassicMember
from headrace.client.member.consumer_member import ConsumerMember
from headrace.client.member.group_member import create_member
from headrace.client.member.membership_machine import Event, Membership
from headrace.client.member.subscriptions import (
    Subscription,
    read_subscription,
    write_subscription,
)
from headrace.model.topics import TopicPartition
from headrace.wire.apis import (
    CONSUMER_GROUP_HEARTBEAT,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from tests.unit.client.engine_scenario import TOPIC_ID, World

GROUP = "readers"


def places(*indexes: int) -> set[TopicPartition]:
    return {TopicPartition("t", index) for index in indexes}


class Coordinator:
    """Answers for one group with one live member, and others as the test has them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.node = 1
        self.generation = 0
        self.others: dict[str, Subscription] = {}
        self.assignments: dict[str, bytes] = {}
        self.offsets: dict[int, int] = {}
        self.codes: dict[int, deque[int]] = {}
        """The error codes of the next responses, by API."""
        self.epoch = 1
        self.assignment: tuple[int, ...] | None = None
        world.topic_ids = True
        answers = world.answers
        answers[FIND_COORDINATOR] = self.find
        answers[JOIN_GROUP] = self.join
        answers[SYNC_GROUP] = self.sync
        answers[HEARTBEAT] = lambda node, _: {"error_code": self.code(HEARTBEAT, node)}
        answers[LEAVE_GROUP] = lambda node, _: {"error_code": 0, "members": []}
        answers[OFFSET_FETCH] = self.fetch_offsets
        answers[OFFSET_COMMIT] = self.commit
        answers[CONSUMER_GROUP_HEARTBEAT] = self.beat
        answers[FETCH] = lambda node, request: None
        answers[LIST_OFFSETS] = self.list_offsets

    def fail(self, api_key: int, *codes: int) -> None:
        self.codes.setdefault(api_key, deque()).extend(codes)

    def code(self, api_key: int, node: int) -> int:
        if node != self.node:
            return 16
        queued = self.codes.get(api_key)
        return queued.popleft() if queued else 0

    def find(self, node: int, request: dict[str, Any]) -> dict[str, Any]:
        found = {"node_id": self.node, "host": f"b{self.node}", "port": 9092, "error_code": 0}
        return {"coordinators": [{"key": GROUP, "error_message": None, **found}]}

    # The classic protocol.

    def join(self, node: int, request: dict[str, Any]) -> dict[str, Any]:
        code = self.code(JOIN_GROUP, node)
        if not code and not request["member_id"]:
            return {"error_code": 79, "member_id": f"m{self.generation}", **_NOBODY}
        if code:
            return {"error_code": code, "member_id": "", **_NOBODY}
        self.generation += 1
        me = request["member_id"]
        raw = request["protocols"][0]["metadata"]
        members = {me: raw} | {who: write_subscription(s) for who, s in self.others.items()}
        return {
            "error_code": 0,
            "generation_id": self.generation,
            "protocol_type": "consumer",
            "protocol_name": request["protocols"][0]["name"],
            "leader": me,
            "member_id": me,
            "members": [
                {"member_id": who, "group_instance_id": None, "metadata": data}
                for who, data in members.items()
            ],
        }

    def sync(self, node: int, request: dict[str, Any]) -> dict[str, Any]:
        code = self.code(SYNC_GROUP, node)
        given = {each["member_id"]: each["assignment"] for each in request["assignments"]}
        self.assignments = given
        return {"error_code": code, "assignment": b"" if code else given[request["member_id"]]}

    def subscription(self) -> Subscription:
        """What the member said when it last joined."""
        asked = self.world.requests(JOIN_GROUP)[-1].request
        return read_subscription(asked["protocols"][0]["metadata"])

    # The consumer protocol.

    def beat(self, node: int, request: dict[str, Any]) -> dict[str, Any]:
        code = self.code(CONSUMER_GROUP_HEARTBEAT, node)
        parts = self.assignment
        if request["member_epoch"] == 0 and parts is None:
            parts = (0, 1)
        self.assignment = None
        topics = [{"topic_id": TOPIC_ID, "partitions": parts}] if parts else []
        return {
            "error_code": code,
            "error_message": None,
            "member_id": request["member_id"],
            "member_epoch": self.epoch if request["member_epoch"] >= 0 else -1,
            "heartbeat_interval_ms": 5_000,
            "assignment": None if parts is None or code else {"topic_partitions": topics},
        }

    def heartbeats(self) -> list[dict[str, Any]]:
        return [asked.request for asked in self.world.requests(CONSUMER_GROUP_HEARTBEAT)]

    # Offsets.

    def fetch_offsets(self, node: int, request: dict[str, Any]) -> dict[str, Any]:
        asked = request["groups"][0]["topics"]
        parts = [
            {
                "partition_index": index,
                "committed_offset": self.offsets.get(index, -1),
                "committed_leader_epoch": -1,
                "metadata": "",
                "error_code": 0,
            }
            for topic in asked
            for index in topic["partition_indexes"]
        ]
        code = self.code(OFFSET_FETCH, node)
        topics = [{"name": "t", "partitions": parts}]
        return {"groups": [{"group_id": GROUP, "topics": topics, "error_code": code}]}

    def commit(self, node: int, request: dict[str, Any]) -> dict[str, Any]:
        code = self.code(OFFSET_COMMIT, node)
        parts = []
        for part in request["topics"][0]["partitions"]:
            if not code:
                self.offsets[part["partition_index"]] = part["committed_offset"]
            parts.append({"partition_index": part["partition_index"], "error_code": code})
        return {"topics": [{"name": "t", "partitions": parts}]}

    def list_offsets(self, node: int, request: dict[str, Any]) -> dict[str, Any]:
        topics = []
        for topic in request["topics"]:
            parts = [
                {
                    "partition_index": part["partition_index"],
                    "error_code": 0,
                    "offset": 10 if part["timestamp"] == -2 else 90,
                }
                for part in topic["partitions"]
            ]
            topics.append({"name": topic["name"], "partitions": parts})
        return {"topics": topics}


_NOBODY: dict[str, Any] = {
    "generation_id": -1,
    "protocol_type": None,
    "protocol_name": None,
    "leader": "",
    "members": [],
}


class Program:
    """A program with one member, which handles events when it polls."""

    def __init__(self, world: World, pattern: str | None = None, **settings: Any) -> None:
        self.world = world
        topics = () if pattern else ("t",)
        wanted: GroupSettings = {"heartbeat_interval_ms": 1_000, **settings}  # type: ignore[typeddict-item]
        found = create_member(world.engine, GROUP, topics, pattern, wanted)
        self.member: Membership = found[0]
        self.protocol: ClassicMember | ConsumerMember = found[1]
        self.seen: list[tuple[str, set[int]]] = []
        world.engine.attach(self.member.fetching)
        self.member.start_protocol(self.protocol.run())

    def poll(self) -> None:
        self.member.poll_called(self.world.now_ms)
        self.world.settle()
        while (event := self.member.next_event()) is not None:
            self.note(event)
            self.member.handled(event)
            self.world.settle()
        self.member.poll_returned(self.world.now_ms)

    def has_records(self) -> bool:
        self.poll()
        return bool(self.member.take(1))

    def note(self, event: Event) -> None:
        self.seen.append((event.kind, {partition.partition for partition in event.partitions}))

    def poll_until_owned(self, indexes: Iterable[int], limit_ms: float = 60_000) -> None:
        """Poll as time passes, until the member owns just these partitions and reads them."""
        wanted = places(*indexes)

        def owns() -> bool:
            self.poll()
            return self.member.owned == wanted == set(self.member.fetching.partitions)

        self.world.until(owns, limit_ms)

    def pass_ms(self, duration_ms: float, step_ms: float = 100) -> None:
        """Advance the time while the program does not poll."""
        end_ms = self.world.now_ms + duration_ms
        while self.world.now_ms < end_ms:
            self.world.pass_ms(step_ms)
