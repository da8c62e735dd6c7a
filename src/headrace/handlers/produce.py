"""Produce, versions 0 to 13: append record batches to partitions.  # HOT

- Checks a batch completely before staging it: header, CRC and the frame of every record, after a
  bounded decompression.
- A worker thread decompresses batches of more than 64 KiB, and smaller ones that expand to more
  than 1 MiB. Until then, later requests of the connection wait, so that they keep their order.
- An error of one partition is returned in the result of that partition.
- With acks=all, waits for followers up to timeout_ms. A waiting request keeps only its partition
  results in memory. The wait ends when the client disconnects, or with
  NOT_ENOUGH_REPLICAS_AFTER_APPEND when the ISR shrinks below min.insync.replicas.
- Requires: Write on the topic.
- Versions: 0 to 13. 0 to 2 are advertised and rejected (KAFKA-18659). Since 13, topic ids.

Gaps: transactions are not supported; a transactional producer gets a fatal error. With acks=all,
the maximum of timeout_ms is 900000, and larger values are reduced to it; Kafka has no limit. For a
duplicate batch with CreateTime, log_append_time_ms is -1, as for the first batch; Kafka returns the
maximum timestamp of the batch, which clients then return for each record.
"""

import logging
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from headrace.model.errors import ApiError, ErrorCode, MalformedBatch, RecordError, default_message
from headrace.record.batch import Batch, read_batch
from headrace.replication.append_queue import ACKS_ALL, AppendQueue
from headrace.replication.append_rules import (
    RECOMPRESSED_ON_LOOP_BYTES_MAX,
    admit,
    needs_recompression,
)
from headrace.replication.partition import Partition
from headrace.replication.produce_exchange import ProduceExchange
from headrace.requests.topic_permissions import WRITE, TopicPermissions
from headrace.runtime.exchange import Peer
from headrace.wire.cursor import MalformedRequest
from headrace.wire.produce import OLDEST, TOPIC_IDS_SINCE, ProducePartition, read_produce

if TYPE_CHECKING:
    from headrace.replication.partition_table import PartitionTable
    from headrace.runtime.worker import Worker

_log = logging.getLogger(__name__)

_PRODUCER_STATE_ERRORS: Final = frozenset(
    {
        int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        int(ErrorCode.INVALID_PRODUCER_EPOCH),
        int(ErrorCode.UNKNOWN_PRODUCER_ID),
    }
)
"""Errors that a log returns for the sequence number or the epoch of a producer."""
_WITHOUT_START_OFFSET: Final = frozenset(
    {
        int(ErrorCode.CORRUPT_MESSAGE),
        int(ErrorCode.KAFKA_STORAGE_ERROR),
        int(ErrorCode.MESSAGE_TOO_LARGE),
        int(ErrorCode.RECORD_LIST_TOO_LARGE),
    }
)
"""As in Kafka, results with these errors or with a MalformedBatch have no log start offset."""
ZSTD: Final = 4
ZSTD_SINCE: Final = 7


@final
class ProduceHandler:
    def __init__(
        self,
        partitions: "PartitionTable",
        appends: AppendQueue,
        worker: "Worker",
        permissions: TopicPermissions,
    ) -> None:
        self.permissions = permissions
        self.partitions = partitions
        self.appends = appends
        self.worker = worker

    def handle(
        self, peer: Peer, correlation_id: i64, version: i64, data: bytes, at: i64, end: i64
    ) -> None:
        if version < OLDEST:
            raise MalformedRequest(
                "Produce versions below 3 use a message format that is not supported"
            )
        request = read_produce(data, at, end, version)
        exchange = ProduceExchange(peer, correlation_id, version, request, data)
        peer.exchanges.append(exchange)
        peer.work += len(request.partitions)
        if request.acks < -1 or request.acks > 1:
            _reject_all(exchange, ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1.")
        elif request.transactional_id is not None:
            _reject_all(
                exchange,
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "Transactions are not supported yet.",
            )
        elif not self._stage_partitions(exchange):
            return
        self.appends.add(exchange)

    def postpone(
        self,
        peer: Peer,
        correlation_id: i64,
        version: i64,
        data: bytes,
        at: i64,
        end: i64,
        wait_ms: i64,
    ) -> None:
        """Append nothing: the client exceeds its quota, and must send the batches again later."""
        request = read_produce(data, at, end, version)
        exchange = ProduceExchange(peer, correlation_id, version, request, data)
        exchange.throttle_ms = wait_ms
        peer.exchanges.append(exchange)
        for part in request.partitions:
            exchange.reject(part, ErrorCode.REQUEST_TIMED_OUT)
        self.appends.add(exchange)

    def _stage_partitions(self, exchange: ProduceExchange) -> bool:
        """Stage the remaining batches in order. False: a worker thread checks one of them first."""
        partitions = exchange.request.partitions
        while exchange.next < len(partitions):
            part = partitions[exchange.next]
            exchange.next += 1
            partition = self._find(exchange, part)
            if partition is None:
                continue
            if exchange.request.acks == ACKS_ALL:
                code: i64 = partition.acks_all_error()
                if code != 0:
                    exchange.reject(part, code)
                    if code == ErrorCode.NOT_ENOUGH_REPLICAS:
                        part.message = partition.isr_shortage()
                        part.log_start_offset = partition.log.log_start_offset
                    continue
            batch = self._read(partition, part, exchange)
            if batch is None:
                continue
            rules = partition.rules
            if part.end - part.start > RECOMPRESSED_ON_LOOP_BYTES_MAX and needs_recompression(
                batch, rules
            ):
                self._stage_later(exchange, partition, part, batch)
                return False
            try:
                batch = admit(batch, rules, self.appends.now_ms, rules.on_loop_bytes_max)
            except ApiError as error:
                if error.code == ErrorCode.MESSAGE_TOO_LARGE:
                    # Decompression would block the loop for too long: a worker thread checks it.
                    self._stage_later(exchange, partition, part, batch)
                    return False
                _reject(part, error, partition)
                continue
            self._stage(exchange, partition, part, batch)
        return True

    def _find(self, exchange: ProduceExchange, part: ProducePartition) -> Partition | None:
        by_id = exchange.version >= TOPIC_IDS_SINCE
        if not self.permissions.allows(exchange.peer, WRITE, part.key, by_id):
            part.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return None
        partition = self.partitions.find(part.key, part.index, by_id)
        if partition is not None and partition.is_leader and not partition.is_internal:
            return partition
        if partition is not None and partition.is_internal:
            part.error = ErrorCode.INVALID_TOPIC
        elif partition is not None:
            exchange.reject(part, partition.not_leader_error())
            if part.error == ErrorCode.KAFKA_STORAGE_ERROR:
                part.message = default_message(ErrorCode.KAFKA_STORAGE_ERROR)
        elif reason := self.partitions.why_unopened(part.key, part.index):
            # The log could not be created, for example without a free descriptor.
            exchange.reject(part, ErrorCode.KAFKA_STORAGE_ERROR)
            part.message = reason
        elif by_id and not self.partitions.knows_id(part.key):
            exchange.reject(part, ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            exchange.reject(part, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return None

    def _read(
        self, partition: Partition, part: ProducePartition, exchange: ProduceExchange
    ) -> Batch | None:
        if part.end - part.start > partition.rules.batch_bytes_max:
            part.error = ErrorCode.MESSAGE_TOO_LARGE
            part.message = (
                f"A batch of {part.end - part.start} bytes is larger than max.message.bytes, "
                f"{partition.rules.batch_bytes_max}."
            )
            return None
        try:
            batch = read_batch(exchange.data, part.start, part.end)
            if batch.codec() == ZSTD and exchange.version < ZSTD_SINCE:
                raise MalformedBatch(
                    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                    f"Produce versions below {ZSTD_SINCE} do not support zstd.",
                )
            if batch.is_transactional():
                raise MalformedBatch(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "A transactional batch requires a transactional id.",
                )
            return batch
        except ApiError as error:
            _reject(part, error, partition)
            return None

    def _stage(
        self, exchange: ProduceExchange, partition: Partition, part: ProducePartition, batch: Batch
    ) -> None:
        if not partition.is_leader:
            # This broker lost the leadership while a worker thread checked the batch.
            exchange.reject(part, partition.not_leader_error())
            return
        if exchange.peer.rejections:
            reason: i64 = exchange.earlier_rejection(part, batch, partition)
            if reason != 0:
                exchange.reject(part, reason)
                return
        try:
            base_offset: i64 = partition.stage(batch, self.appends.now_ms)
        except ApiError as error:
            if error.code in _PRODUCER_STATE_ERRORS and self.appends.may_be_stale():
                # The producer can have written to a newer leader, so this error could be wrong.
                exchange.reject(part, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                return
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
                exchange.reject(part, error.code)
            _reject(part, error, partition)
            return
        part.base_offset = base_offset
        part.end_offset = base_offset + batch.last_offset_delta + 1
        part.producer_id = batch.producer_id
        part.producer_epoch = batch.producer_epoch
        part.base_sequence = batch.base_sequence
        part.log_start_offset = partition.log.log_start_offset
        if batch.is_log_append_time():
            part.append_time_ms = batch.max_timestamp
        exchange.staged.append(part)
        exchange.partitions.append(partition)
        self.appends.mark_dirty(partition)

    def _stage_later(
        self, exchange: ProduceExchange, partition: Partition, part: ProducePartition, batch: Batch
    ) -> None:
        """Check a large batch on a worker thread. Then stage it and the batches after it."""
        peer = exchange.peer
        peer.muted = True
        rules = partition.rules
        now_ms: i64 = self.appends.now_ms
        has_response = exchange.request.acks != 0

        def job() -> object:
            if has_response and peer.closed:
                # The client has disconnected. If it needs the batch, it sends the batch again.
                return None
            try:
                return admit(batch, rules, now_ms, rules.decompressed_bytes_max)
            except ApiError as error:
                # Not raised: its traceback would keep the decompressed records in memory.
                _reject(part, error, partition)
                return None

        def done(admitted: object, error: BaseException | None) -> None:
            self.appends.update_time()
            if isinstance(admitted, Batch):
                self._stage(exchange, partition, part, admitted)
            elif error is not None:
                _log.error("batch validation failed", exc_info=error)
                part.error = ErrorCode.UNKNOWN_SERVER_ERROR
            if self._stage_partitions(exchange):
                peer.muted = False
                self.appends.add(exchange)
            self.appends.send_responses()

        self.worker.submit(job, done)


def _reject(part: ProducePartition, error: ApiError, partition: Partition) -> None:
    part.error = error.code
    part.message = error.message
    if error.code not in _WITHOUT_START_OFFSET and not isinstance(error, MalformedBatch):
        part.log_start_offset = partition.log.log_start_offset
    if isinstance(error, RecordError):
        part.bad_records = error.record_indexes


def _reject_all(exchange: ProduceExchange, code: i64, message: str) -> None:
    for part in exchange.request.partitions:
        part.error = code
        part.message = message
