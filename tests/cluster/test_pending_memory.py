"""The memory of a leader whose clients wait for a follower that does not fetch."""

import threading
from contextlib import ExitStack
from pathlib import Path

from headrace.testing.cluster import ClusterBroker, RunningCluster
from tests.broker.raw import PRODUCE, PRODUCE_VERSION, RawConnection, one_batch
from tests.cluster.history import Topic, wait_for

SETTINGS = {
    "zookeeper.session.timeout.ms": "60000",
    "replica.lag.time.max.ms": "60000",
}
CONNECTIONS = 4
REQUESTS = 900
RECORD_BYTES = 60_000
MIB = 1 << 20
GROWTH_BYTES_MAX = 80 * MIB
"""The requests together have 206 MiB. Buffers, rows and the allocator take some memory."""
INT32_MAX = 0x7FFFFFFF


def _memory(broker: ClusterBroker, field: str) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii")
    (line,) = [each for each in status.splitlines() if each.startswith(field + ":")]
    return int(line.split()[1]) * 1024


def _pipeline(connection: RawConnection, topic: str) -> None:
    body = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": INT32_MAX,
        "topic_data": [
            {
                "name": topic,
                "partition_data": [{"index": 0, "records": one_batch(b"v" * RECORD_BYTES)}],
            }
        ],
    }
    frame = connection.frame(PRODUCE, PRODUCE_VERSION, body)
    for _ in range(REQUESTS):
        connection.send(frame)


def test_requests_that_wait_for_a_paused_follower_take_little_memory(tmp_path: Path) -> None:
    with (
        RunningCluster.start(tmp_path, brokers=2, settings=SETTINGS) as cluster,
        ExitStack() as stack,
    ):
        topic = Topic(cluster, "pending", 1, 2, min_insync_replicas="2")
        leader = cluster.brokers[topic.leader()]
        (follower,) = [each for each in cluster.brokers.values() if each is not leader]
        host, _, port = leader.address.rpartition(":")
        follower.pause()
        before = _memory(leader, "VmRSS")
        Path(f"/proc/{leader.pid}/clear_refs").write_text("5", encoding="ascii")
        connections = [
            stack.enter_context(RawConnection(int(port), host=host)) for _ in range(CONNECTIONS)
        ]
        threads = [
            threading.Thread(target=_pipeline, args=(each, topic.name)) for each in connections
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log = next(leader.data_dir.glob("pending-0/*.log"))
        expected = CONNECTIONS * REQUESTS * RECORD_BYTES
        wait_for("every record in the log", lambda: log.stat().st_size >= expected)
        assert _memory(leader, "VmHWM") - before < GROWTH_BYTES_MAX
        follower.resume()
        for connection in connections:
            for _ in range(REQUESTS):
                reply = connection.read_answer(PRODUCE, PRODUCE_VERSION)
                assert reply["responses"][0]["partition_responses"][0]["error_code"] == 0
