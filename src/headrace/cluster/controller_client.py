"""Sends requests of this broker to the controller.

Calls the controller directly if this broker is the controller. Otherwise, sends over a link.
Retries topic creations, controlled shutdowns and reports of failed logs; callers retry all others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

from headrace.cluster.controller_role import ControllerRole
from headrace.cluster.peers import CALL_TIMEOUT_S, Peers, Unreachable
from headrace.env.clock import Clock
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.runtime.link import LinkBroken
from headrace.wire.apis import (
    ALLOCATE_PRODUCER_IDS,
    ASSIGN_REPLICAS_TO_DIRS,
    BROKER_HEARTBEAT,
    CREATE_TOPICS,
)

_RETRY_S = 0.1
_CREATE_VERSION = 7
_LOST_DIR = UUID(int=1)
"""Kafka's id for the directory of logs that have failed (DirectoryId.LOST)."""
_log = logging.getLogger(__name__)


class ControllerClient:
    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        role: ControllerRole,
        peers: Peers,
        clock: Clock,
        broker_epoch: Callable[[], int],
        serve: Callable[[int, dict[str, Any]], Awaitable[dict[str, Any]]],
    ) -> None:
        """`serve` responds to requests while this broker is the controller."""
        self._node_id = node_id
        self._image = image
        self._role = role
        self._peers = peers
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._serve = serve
        self._failed_logs: dict[tuple[UUID, int], None] = {}
        """Partitions whose log on this broker has failed, by topic id and index."""
        self._reports: dict[asyncio.Task[None], None] = {}
        """The report in progress, if any."""

    def stop(self) -> None:
        for report in self._reports:
            report.cancel()

    async def producer_id_block(self) -> tuple[int, int]:
        """A new block of producer ids: the first id, and the count."""
        try:
            reply = await self.to_controller(ALLOCATE_PRODUCER_IDS, 0, self._sender_fields())
        except LinkBroken as error:
            _log.warning("no producer ids from the controller: error=%s", error)
            reply = {"error_code": ErrorCode.NOT_CONTROLLER}
        code = reply.get("error_code", ErrorCode.NONE)
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            # Java retries forever after any error code that it considers retriable.
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
        if code != ErrorCode.NONE:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return reply["producer_id_start"], reply["producer_id_len"]

    async def to_controller(
        self,
        api_key: int,
        version: int,
        message: Mapping[str, Any],
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Send a request to the controller, which can be this broker.

        The response can have an error. Unreachable: the request was not sent. LinkBroken: it might
        have been processed.
        """
        if self._role.is_controller:
            return await self._serve(api_key, dict(message))
        controller_id = self._image.controller_id
        if controller_id in (-1, self._node_id):
            raise Unreachable("no controller is available")
        return await self._peers.call(controller_id, api_key, version, message, timeout_s)

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        """Create a topic through another broker, which is the controller.

        Raises NOT_CONTROLLER if none is available, or if this broker becomes the controller.
        """
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        deadline = self._clock.monotonic() + timeout_s
        while (left_s := deadline - self._clock.monotonic()) > 0:
            if self._role.is_controller:
                break  # The next attempt of the caller creates the topic here.
            message = {"topics": [topic], "timeout_ms": int(left_s * 1000) + 1}
            try:
                reply = await self.to_controller(CREATE_TOPICS, _CREATE_VERSION, message, left_s)
                entry = reply["topics"][0]
            except Unreachable as error:
                entry = {"error_code": ErrorCode.NOT_CONTROLLER, "error_message": str(error)}
            except LinkBroken as error:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from None
            code = ErrorCode(entry["error_code"])
            if code is ErrorCode.NONE:
                return
            if code is not ErrorCode.NOT_CONTROLLER:
                raise ApiError(code, entry["error_message"] or "")
            await asyncio.sleep(min(_RETRY_S, left_s))
        raise ApiError(ErrorCode.NOT_CONTROLLER, "No controller is available.")

    async def controlled_shutdown(self, timeout_s: float = 10.0) -> bool:
        """Hand over all leaderships of this broker.

        Returns whether that succeeded within the timeout.
        """
        message = {**self._sender_fields(), "want_shut_down": True}
        deadline = self._clock.monotonic() + timeout_s
        while self._broker_epoch() != -1 and len(self._image.brokers) > 1:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                return False
            try:
                reply = await self.to_controller(BROKER_HEARTBEAT, 1, message, left_s)
            except LinkBroken as error:
                _log.info("controlled shutdown request failed, retrying: error=%s", error)
            else:
                if reply.get("should_shut_down"):
                    return True
            await asyncio.sleep(min(_RETRY_S, left_s))
        return True

    def add_failed_log(self, topic_id: UUID, index: int) -> None:
        """Report that this broker's log of a partition has failed, until this process ends."""
        self._failed_logs[topic_id, index] = None
        self.report_failed_logs()

    def report_failed_logs(self) -> None:
        """Start to report all failed logs of this process, if any."""
        if self._failed_logs and not self._reports:
            report = asyncio.get_running_loop().create_task(self._report_until_accepted())
            self._reports[report] = None
            report.add_done_callback(self._reports.pop)

    async def _report_until_accepted(self) -> None:
        """Repeat the report until a controller has accepted all failed logs."""
        accepted = -1
        while accepted != len(self._failed_logs):
            partitions: dict[UUID, list[dict[str, int]]] = {}
            for topic_id, index in self._failed_logs:
                if topic_id in self._image.names_by_id:
                    partitions.setdefault(topic_id, []).append({"partition_index": index})
            topics = [
                {"topic_id": id_, "partitions": entries} for id_, entries in partitions.items()
            ]
            count = len(self._failed_logs)
            message = {
                **self._sender_fields(),
                "directories": [{"id_": _LOST_DIR, "topics": topics}],
            }
            try:
                reply = await self.to_controller(ASSIGN_REPLICAS_TO_DIRS, 0, message)
                if reply.get("error_code", ErrorCode.NONE) == ErrorCode.NONE:
                    accepted = count
                    continue
            except LinkBroken as error:
                _log.info("failed logs not reported to the controller, retrying: error=%s", error)
            await asyncio.sleep(_RETRY_S)

    def _sender_fields(self) -> dict[str, Any]:
        return {"broker_id": self._node_id, "broker_epoch": self._broker_epoch()}
