"""Records the requests and responses of real clients and a broker into frames/. Run by hand:

    python -m tests.wire.capture [aiokafka] [kafka_python] [librdkafka] [java]

The broker advertises the port of a proxy that forwards and records all bytes. They contain only the
data of the scenario below. The Java client runs the scenario of tests/java, of which only a part is
kept.
"""

import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from bench import kafka
from headrace.testing import RunningBroker
from tests.interop.aiokafka_client import Aiokafka
from tests.interop.client import Client, Record
from tests.interop.kafka_python import KafkaPython
from tests.interop.librdkafka import Librdkafka
from tests.wire.captured import CLIENTS, WHOLE, Captured, save

ADAPTERS: dict[str, type[Client]] = {
    "aiokafka": Aiokafka,
    "kafka_python": KafkaPython,
    "librdkafka": Librdkafka,
}
TOPIC = "captured"
JAVA_CLIENT = Path(__file__).parent.parent / "java" / "JavaClient.java"
FRAME_BYTES_MAX = 8000
FRAMES_OF_A_KIND_MAX = 4


class Tee:
    """A proxy for one port that records every byte and its time."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target_port = 0
        self._lock = threading.Lock()
        self._chunks: list[tuple[int, bool, bytes]] = []
        """(connection, whether from the client, bytes), in order."""
        self._connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            broker = socket.create_connection(("127.0.0.1", self.target_port))
            number = self._connections
            self._connections += 1
            for source, sink, is_client in ((client, broker, True), (broker, client, False)):
                threading.Thread(
                    target=self._pump, args=(number, source, sink, is_client), daemon=True
                ).start()

    def _pump(
        self, number: int, source: socket.socket, sink: socket.socket, is_client: bool
    ) -> None:
        try:
            while data := source.recv(65536):
                with self._lock:
                    self._chunks.append((number, is_client, data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def take(self) -> list[Captured]:
        """What was said since the last call, request by request."""
        with self._lock:
            chunks, self._chunks = self._chunks, []
        return _paired(chunks)


def _paired(chunks: list[tuple[int, bool, bytes]]) -> list[Captured]:
    pending: dict[tuple[int, bool], bytes] = {}
    requests: list[tuple[int, bytes]] = []
    responses: dict[int, list[bytes]] = {}
    for number, is_client, data in chunks:
        data = pending.pop((number, is_client), b"") + data
        while len(data) >= 4 and len(data) - 4 >= (size := struct.unpack_from(">i", data)[0]):
            frame, data = data[4 : 4 + size], data[4 + size :]
            if is_client:
                requests.append((number, frame))
            else:
                responses.setdefault(number, []).append(frame)
        pending[number, is_client] = data
    found: list[Captured] = []
    for number, request in requests:
        waiting = responses.get(number, [])
        answer = None
        if waiting and waiting[0][:4] == request[4:8]:
            answer = waiting.pop(0)
        found.append(Captured(request, answer))
    return found


def scenario(client: Client) -> None:
    """A little of everything, small enough to keep."""
    now_ms = int(time.time() * 1000) - 3_600_000
    client.create_topic(TOPIC, partitions=2, configs={"retention.ms": "3600000000"})
    records = [
        Record(b"value %d" % n, b"key %d" % n, (("header", b"%d" % n), ("empty", b"")), now_ms + n)
        for n in range(5)
    ]
    records += [Record(None, b"tombstone"), Record(b"no key"), Record(b"", b"")]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        client.produce(TOPIC, records, codec=codec)
    client.produce(TOPIC, records, idempotent=True)
    client.produce(TOPIC, records, acks="1", partition=1)
    client.produce(TOPIC, records, acks="0", partition=1)
    client.consume(TOPIC, 48)
    client.read_at(TOPIC, [40, 3, 17])
    client.watermarks(TOPIC)
    client.offset_for_time(TOPIC, now_ms + 2)
    client.offset_for_time(TOPIC, now_ms + 10**9)
    client.partitions(TOPIC)
    client.topic_configs(TOPIC)
    client.alter_topic_configs(TOPIC, {"max.message.bytes": "2000000"})
    client.create_partitions(TOPIC, 3)
    client.delete_records(TOPIC, 5)
    client.create_topic("short-lived")
    client.delete_topic("short-lived")


def java_scenario(address: str) -> None:
    with tempfile.TemporaryDirectory() as classes:
        jars = kafka.class_path()
        compiler = ["javac", "-proc:none", "-d", classes, "-cp", jars, str(JAVA_CLIENT)]
        subprocess.run(compiler, check=True)
        program = [kafka.java(), "-Xmx256m", "-cp", f"{classes}:{jars}", "JavaClient", address]
        subprocess.run(program, check=False)


def a_little(conversation: list[Captured]) -> list[Captured]:
    """Some requests of each kind and version, none of them long."""
    counts: Counter[tuple[int, int]] = Counter()
    kept = []
    for each in conversation:
        size = len(each.request) + len(each.response or b"")
        kind = each.api_key, each.version
        if size <= FRAME_BYTES_MAX and counts[kind] < FRAMES_OF_A_KIND_MAX:
            counts[kind] += 1
            kept.append(each)
    return kept


def main() -> None:
    for name in sys.argv[1:] or CLIENTS:
        tee = Tee()
        settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{tee.port}"}
        # What the broker calls its port is the proxy's.
        with socket.create_server(("127.0.0.1", 0)) as free:
            tee.target_port = free.getsockname()[1]
        with RunningBroker.start(port=tee.target_port, settings=settings):
            address = f"127.0.0.1:{tee.port}"
            if name == "java":
                java_scenario(address)
            else:
                scenario(ADAPTERS[name](address))
        conversation = tee.take()
        if name not in WHOLE:
            conversation = a_little(conversation)
        save(name, conversation)
        said = sorted({(each.api_key, each.version) for each in conversation})
        print(f"{name}: {len(conversation)} requests, {said}")


if __name__ == "__main__":
    main()
