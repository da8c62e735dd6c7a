"""A client that sends arbitrary bytes over a socket, and measurements of the broker.

Valid requests are encoded by the generic codec, which shares no code with the broker's codecs of
Produce and Fetch.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from headrace.record.build import NewRecord, build_batch
from headrace.record.decode import read_batches, read_records
from headrace.testing import RunningBroker
from headrace.wire.codec import Message, decode_response, encode_request

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
API_VERSIONS = 18
CREATE_TOPICS = 19
INIT_PRODUCER_ID = 22

PRODUCE_VERSION = 9
FETCH_VERSION = 12
CLOSE_SECONDS = 30.0
"""The broker closes an invalid connection within a second; the limit allows for a busy machine."""
_ANSWER_SECONDS = 40.0
_POLL_SECONDS = 0.005
_BYSTANDERS_TOPIC = "bystander"


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(api_key: int, version: int, *, correlation_id: int = 7, flexible: bool = False) -> bytes:
    """A request header with the client id "raw", and no tags."""
    start = struct.pack(">hhih", api_key, version, correlation_id, 3) + b"raw"
    return start + b"\0" if flexible else start


def eventually(what: str, is_so: Callable[[], bool], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(_POLL_SECONDS)


class RawConnection:
    """One socket to a broker. `ask` is for honest requests, `send` for all others."""

    def __init__(
        self,
        port: int,
        receive_buffer_bytes: int | None = None,
        source: str | None = None,
        host: str = "",
        family: socket.AddressFamily = socket.AF_INET,
    ) -> None:
        host = host or ("::1" if family == socket.AF_INET6 else "127.0.0.1")
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        if source is not None:
            self.sock.bind((source, 0))
        if receive_buffer_bytes is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.sock.settimeout(_ANSWER_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.sock.connect((host, port))
        except OSError:
            self.sock.close()
            raise
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sock.close()

    @property
    def name(self) -> str:
        """As the broker's log has it."""
        host, port = self.sock.getsockname()
        return f"{host}:{port}"

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send_as_taken(self, data: bytes) -> int:
        """Send as many bytes as the socket accepts without waiting, and return their number."""
        self.sock.settimeout(0)
        sent = 0
        view = memoryview(data)
        try:
            while sent < len(data):
                sent += self.sock.send(view[sent : sent + 65536])
        except BlockingIOError:
            pass
        finally:
            self.sock.settimeout(_ANSWER_SECONDS)
        return sent

    def read_exactly(self, size: int) -> bytes:
        pieces = []
        while size:
            piece = self.sock.recv(min(size, 1 << 20))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def read_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self.read_exactly(4))
        return self.read_exactly(size)

    def wait_closed(self, seconds: float = CLOSE_SECONDS) -> bytes:
        """Return the bytes until the broker closes the connection; fail if it does not close it."""
        self.sock.settimeout(seconds)
        came = b""
        try:
            while piece := self.sock.recv(65536):
                came += piece
        except ConnectionError:
            pass
        except TimeoutError:
            raise AssertionError(f"the connection is open after {seconds:g} s") from None
        return came

    def frame(self, api_key: int, version: int, body: Message) -> bytes:
        """A complete request with its length prefix. Each has the next correlation id."""
        self._correlation_id += 1
        return framed(encode_request(api_key, version, self._correlation_id, "raw", body))

    def ask(self, api_key: int, version: int, body: Message) -> Message:
        self.send(self.frame(api_key, version, body))
        return self.read_answer(api_key, version)

    def read_answer(self, api_key: int, version: int) -> Message:
        _, reply = decode_response(api_key, version, self.read_frame())
        return reply

    # The requests that tests make most.

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        settings = [{"name": k.replace("_", "."), "value": v} for k, v in configs.items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": (),
            "configs": settings,
        }
        reply = self.ask(CREATE_TOPICS, 4, {"topics": [topic], "timeout_ms": 30_000})
        assert reply["topics"][0]["error_code"] == 0, reply

    def topic_id(self, name: str) -> UUID:
        wanted = {"topics": [{"name": name, "topic_id": None}]}
        (topic,) = self.ask(METADATA, 12, wanted)["topics"]
        assert isinstance(topic["topic_id"], UUID)
        return topic["topic_id"]

    def produce_frame(
        self,
        topic: str,
        records: bytes | None,
        *,
        partition: int = 0,
        acks: int = 1,
        version: int = PRODUCE_VERSION,
    ) -> bytes:
        partitions = [{"index": partition, "records": records}]
        body = {
            "transactional_id": None,
            "acks": acks,
            "timeout_ms": 30_000,
            "topic_data": [{"name": topic, "partition_data": partitions}],
        }
        return self.frame(PRODUCE, version, body)

    def produce(
        self,
        topic: str,
        records: bytes | None,
        *,
        partition: int = 0,
        acks: int = 1,
        version: int = PRODUCE_VERSION,
    ) -> Message:
        """The result of the only partition in the response."""
        self.send(
            self.produce_frame(topic, records, partition=partition, acks=acks, version=version)
        )
        reply = self.read_answer(PRODUCE, version)
        answer: Message = reply["responses"][0]["partition_responses"][0]
        return answer

    def fetch_frame(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int = FETCH_VERSION,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        partition_max_bytes: int = 50 << 20,
        current_leader_epoch: int = -1,
        session_epoch: int = -1,
    ) -> bytes:
        asked = {
            "partition": partition,
            "current_leader_epoch": current_leader_epoch,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": partition_max_bytes,
        }
        body = {
            "replica_id": -1,
            "max_wait_ms": max_wait_ms,
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": session_epoch,
            "topics": [{"topic": topic, "partitions": [asked]}],
            "forgotten_topics_data": (),
            "rack_id": "",
        }
        return self.frame(FETCH, version, body)

    def fetch(self, topic: str, offset: int, **options: Any) -> Message:
        """The result of the only partition in the response."""
        self.send(self.fetch_frame(topic, offset, **options))
        reply = self.read_answer(FETCH, options.get("version", FETCH_VERSION))
        answer: Message = reply["responses"][0]["partitions"][0]
        return answer

    def end_offset(self, topic: str, partition: int = 0) -> int:
        asked = [{"partition_index": partition, "timestamp": -1}]
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": asked}],
        }
        reply = self.ask(LIST_OFFSETS, 2, body)
        answer = reply["topics"][0]["partitions"][0]
        assert answer["error_code"] == 0, answer
        offset: int = answer["offset"]
        return offset


def one_batch(*values: bytes, timestamp: int | None = None, **header_fields: Any) -> bytes:
    """An honest batch; see build_batch for what can be said of its header."""
    if timestamp is None:
        timestamp = round(time.time() * 1000)
    records = [NewRecord(b"key", value, timestamp) for value in values or (b"value",)]
    return build_batch(records, **header_fields)


def values_of(records: bytes) -> list[bytes | None]:
    return [
        record.value
        for batch in read_batches(records, 0, len(records))
        for record in read_records(batch)
    ]


Crowd = list[RawConnection]


class WatchedBroker:
    """A live broker, and a client of it that must not notice what others do to it."""

    def __init__(self, process: RunningBroker) -> None:
        self.process = process
        self._seen = 0
        self._bystander: RawConnection | None = None
        self._served = 0

    @property
    def port(self) -> int:
        return self.process.port

    def connect(self, receive_buffer_bytes: int | None = None) -> RawConnection:
        return RawConnection(self.process.port, receive_buffer_bytes)

    def begin(self) -> None:
        """Skip the log lines so far, and check that the broker works before a test."""
        if self._bystander is None:
            self._bystander = self.connect()
            self._bystander.create_topic(_BYSTANDERS_TOPIC)
        self.check_bystander()
        self._seen = self.process.log_size()

    def check_bystander(self) -> None:
        """A connection that was open all the time, and the next client, are both served."""
        assert self.process.is_running, self.process.log()
        assert self._bystander is not None
        with self.connect() as newcomer:
            for connection in (self._bystander, newcomer):
                self._served += 1
                value = b"served %d" % self._served
                answer = connection.produce(_BYSTANDERS_TOPIC, one_batch(value))
                assert answer["error_code"] == 0, answer
                found = connection.fetch(_BYSTANDERS_TOPIC, answer["base_offset"])
                assert values_of(found["records"]) == [value]

    def end(self) -> None:
        """See that all is well after a test, and that the broker found no fault with itself."""
        self.check_bystander()
        log = self._log()
        at = log.find("Traceback")
        assert at < 0, log[max(at - 500, 0) : at + 5000]
        assert "internal error" not in log

    def _log(self) -> str:
        """All that was logged since the test began."""
        with self.process.log_path.open("rb") as file:
            file.seek(self._seen)
            return file.read().decode(errors="replace")

    def close(self) -> None:
        if self._bystander is not None:
            self._bystander.sock.close()
        self.process.close()

    def log_lines(self, words: str = "") -> list[str]:
        """What was logged since the test began, as far as it has these words."""
        return [line for line in self._log().splitlines() if words in line]

    def check_closed(self, connection: RawConnection, words: str = "") -> None:
        """Check that the connection ends without a response, and that the log has the reason."""
        assert connection.wait_closed() == b""
        self.check_told(connection, words)

    def check_told(self, connection: RawConnection, words: str = "") -> None:
        start = f"connection closed by the broker: peer={connection.name} "
        eventually("a line in the log", lambda: bool(self.log_lines(start)))
        lines = self.log_lines(start)
        assert len(lines) == 1, lines
        assert words in lines[0], lines

    def memory_bytes(self) -> int:
        return self._memory("VmRSS")

    def watch_peak(self) -> int:
        """Let the peak count from here; returns the memory in use now."""
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
            file.write("5")
        return self.memory_bytes()

    def peak_bytes(self) -> int:
        return self._memory("VmHWM")

    def _memory(self, field: str) -> int:
        with open(f"/proc/{self.process.pid}/status") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
        raise LookupError(field)


@contextmanager
def many(port: int, count: int, receive_buffer_bytes: int | None = None) -> Iterator[Crowd]:
    """Connections that are closed at the end, all of them."""
    with ExitStack() as stack:
        yield [stack.enter_context(RawConnection(port, receive_buffer_bytes)) for _ in range(count)]
