"""A paused connection continues to read, also in the middle of a request."""

from headrace.record.compression import ZSTD
from headrace.wire.apis import PRODUCE
from tests.broker.raw import PRODUCE_VERSION, WatchedBroker, one_batch

ROUNDS = 20


def test_large_request_is_completed_after_a_pause(
    target: WatchedBroker,
) -> None:
    with target.connect() as connection:
        connection.create_topic("paused")
        # A small batch that is large after decompression. A thread validates it. Until then, no
        # other request of this connection is parsed.
        slow = connection.produce_frame("paused", one_batch(*[bytes(1000)] * 3000, codec=ZSTD))
        large = connection.produce_frame("paused", one_batch(*[b"x" * 1000] * 150))
        assert len(slow) < 64 * 1024 < len(large)
        for done in range(ROUNDS):
            connection.send(slow + large[:100_000])
            connection.send(large[100_000:])
            for count in (3000, 150):
                answer = connection.read_answer(PRODUCE, PRODUCE_VERSION)
                (part,) = answer["responses"][0]["partition_responses"]
                assert part["error_code"] == 0
                expected = done * 3150 + (0 if count == 3000 else 3000)
                assert part["base_offset"] == expected
