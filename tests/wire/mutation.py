"""Invalid requests: randomly changed real ones, and ones with random content.

All frames come from one seeded generator: the same seed gives the same frames. A frame includes its
length prefix, which can be wrong.
"""

import struct
from random import Random

from headrace.record.build import NewRecord, build_batch
from headrace.wire.apis import API_VERSIONS, PRODUCE
from headrace.wire.codec import Message, encode_request
from headrace.wire.schema import Field, Shape, load_shape
from tests.wire.captured import CLIENTS, load
from tests.wire.messages import EVERY_VERSION, random_message

TOPICS = ("captured", "captured", "captured", "nowhere", "", "..", "a/b", "x" * 300, "é\0\n")
NUMBERS = (0, 1, 2, 3, 7, 8, 60, 61, 62, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 1 << 20)
BOUNDS = (2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1)
_NAMES = {"name", "topic", "topic_name", "resource_name"}
_PACKERS = tuple(map(struct.Struct, (">b", ">h", ">i", ">q")))


def captured_requests() -> list[bytes]:
    return [captured.request for client in CLIENTS for captured in load(client)]


def random_batch(rng: Random) -> bytes:
    """An honest batch, of any codec."""
    records = [
        NewRecord(
            rng.choice((None, b"", rng.randbytes(rng.randrange(40)))),
            rng.choice((None, b"", rng.randbytes(rng.randrange(200)), bytes(1000))),
            1_700_000_000_000 + rng.randrange(1000),
            [("h", rng.randbytes(3))] * rng.choice((0, 0, 1, 3)),
        )
        for _ in range(rng.choice((1, 1, 2, 5, 20)))
    ]
    is_idempotent = rng.random() < 0.3
    return build_batch(
        records,
        codec=rng.randrange(5),
        producer_id=rng.randrange(100) if is_idempotent else -1,
        producer_epoch=rng.randrange(3) if is_idempotent else -1,
        base_sequence=rng.randrange(5) if is_idempotent else -1,
    )


class Mutator:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self._real = captured_requests()

    def frame(self) -> bytes:
        """One more frame for a broker to deal with."""
        rng = self.rng
        if rng.random() < 0.5:
            payload, changes = self._invented(), rng.choice((0, 0, 0, 1, 2))
        else:
            payload = self._real[rng.randrange(len(self._real))]
            changes = rng.choice((0, 1, 1, 1, 2, 3, 6))
        for _ in range(changes):
            payload = self.mutated(payload)
        return self._length(len(payload)) + payload

    def mutated(self, data: bytes) -> bytes:
        """The same bytes with one thing changed."""
        rng = self.rng
        at = rng.randrange(len(data) + 1)
        match rng.randrange(9):
            case 0:  # A bit.
                if not data:
                    return data
                at = min(at, len(data) - 1)
                return data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]
            case 1:  # A byte.
                return data[:at] + rng.randbytes(1) + data[at + 1 :]
            case 2:  # Cut off.
                return data[:at]
            case 3:  # Cut out.
                return data[:at] + data[at + rng.choice((1, 2, 4, 8, 30)) :]
            case 4:  # Something in between.
                return data[:at] + rng.randbytes(rng.choice((1, 2, 4, 30))) + data[at:]
            case 5:  # The same again.
                size = rng.choice((1, 4, 16, 64))
                return data[:at] + data[at : at + size] * rng.randrange(2, 5) + data[at + size :]
            case 6:  # The end of another.
                other = self._real[rng.randrange(len(self._real))]
                return data[:at] + other[rng.randrange(len(other)) :]
            case 7:  # A number.
                number = self._number_bytes()
                return data[:at] + number + data[at + len(number) :]
            case _:  # Another version, or another API.
                field = rng.choice((0, 2))
                number = struct.pack(">h", rng.choice((-1, 0, 1, 3, 9, 12, 13, 18, 19, 22, 99)))
                return data[:field] + number + data[field + 2 :]

    def _number_bytes(self) -> bytes:
        rng = self.rng
        number = rng.choice(NUMBERS + BOUNDS) * rng.choice((1, 1, -1))
        if rng.random() < 0.3:
            rest, out = number & 0xFFFFFFFFFF, bytearray()
            while rest > 0x7F:
                out.append(rest & 0x7F | 0x80)
                rest >>= 7
            return bytes((*out, rest))
        packer = rng.choice(_PACKERS)
        bits = 8 * packer.size
        return (number & ((1 << bits) - 1)).to_bytes(packer.size, "big")

    def _length(self, size: int) -> bytes:
        rng = self.rng
        if rng.random() < 0.03:
            size = rng.choice((size + 1, size - 1, size * 2, 0, -1, 7, 2**31 - 1, 70_000))
        return struct.pack(">i", max(min(size, 2**31 - 1), -(2**31)))

    def _invented(self) -> bytes:
        """A request whose fields fit its version, with anything in them."""
        rng = self.rng
        api, version = EVERY_VERSION[rng.randrange(len(EVERY_VERSION))]
        shape = load_shape(api.schema, version, "request")
        body = random_message(rng, shape)
        self._aim(body, shape)
        if api.key == PRODUCE:
            body["acks"] = rng.choice((-1, 0, 1, 1, 7))
            if "transactional_id" in body and rng.random() < 0.8:
                body["transactional_id"] = None
        if api.key == API_VERSIONS and "client_software_name" in body:
            body["client_software_name"] = "fuzz"
        return encode_request(api.key, version, rng.getrandbits(31), "fuzz", body)

    def _aim(self, message: Message, shape: Shape) -> None:
        """Let names be those of topics, numbers small or at their limits, records be batches."""
        for field in shape.fields:
            value = message[field.name]
            if field.struct is not None:
                for item in value if isinstance(value, list) else [value]:
                    if item is not None:
                        self._aim(item, field.struct)
            elif value is not None and not field.is_array:
                message[field.name] = self._aimed(field, value)

    def _aimed(self, field: Field, value: object) -> object:
        rng = self.rng
        if field.name in _NAMES:
            return rng.choice(TOPICS)
        if field.kind == "records":
            batch = random_batch(rng)
            return self.mutated(batch) if rng.random() < 0.3 else batch
        if field.name == "partition" or field.name.endswith("index"):
            return rng.choice((0, 0, 1, 2, -1, 2**31 - 1)) if field.kind == "int32" else value
        return value
