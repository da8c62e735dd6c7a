"""A link between brokers over real sockets: responses in order, or one error."""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from headrace.runtime.link import Link, LinkBroken, Refused, SocketNetwork, call
from headrace.wire.codec import encode_response

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = b"\0\x01\0\x11????a request"
API_VERSIONS = 18


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 50))


class Peer:
    """A minimal server on a free port."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.served = asyncio.Event()

    async def __aenter__(self) -> "Peer":
        self._server = await asyncio.start_server(self._run, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.served.wait()

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
            await writer.drain()
            # The one who dialled hangs up: then nothing that was sent is lost.
            while await reader.read(65536):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.served.set()

    async def connect(self) -> Link:
        return await SocketNetwork().connect("127.0.0.1", self.port, 5)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def answer(request: bytes, body: bytes) -> bytes:
    return (4 + len(body)).to_bytes(4, "big") + request[4:8] + body


class Answers:
    """Collects responses and errors in order."""

    def __init__(self) -> None:
        self.frames: list[bytes | None] = []
        self._came = asyncio.Event()

    def __call__(self, frame: bytes | None) -> None:
        self.frames.append(frame)
        self._came.set()

    async def wait_for(self, count: int) -> list[bytes | None]:
        while len(self.frames) < count:
            self._came.clear()
            await self._came.wait()
        return self.frames


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        request = await read_frame(reader)
        writer.write(answer(request, request))


def test_responses_are_in_order_with_different_correlation_ids() -> None:
    async def scenario() -> None:
        async with Peer(echo) as peer:
            link = await peer.connect()
            answers = Answers()
            for text in (b"one", b"two", b"three"):
                link.send(REQUEST + text, answers)
            assert answers.frames == []
            frames = [frame or b"" for frame in await answers.wait_for(3)]
            assert [frame[12:] for frame in frames] == [
                b"a requestone",
                b"a requesttwo",
                b"a requestthree",
            ]
            assert all(frame[4:8] == REQUEST[:4] for frame in frames)
            assert len({frame[:4] for frame in frames}) == 3
            link.close()

    run(scenario())


def test_responses_are_complete_with_any_chunks_of_bytes() -> None:
    bodies = [b"", b"x" * 10, b"y" * 3_000_000, b"z"]

    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b"".join([answer(await read_frame(reader), body) for body in bodies])
        for at in range(60):
            writer.write(data[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(data[60:-3])
        await writer.drain()
        writer.write(data[-3:])

    async def scenario() -> None:
        async with Peer(dribble) as peer:
            link = await peer.connect()
            answers = Answers()
            for _ in bodies:
                link.send(REQUEST, answers)
            assert [(frame or b"")[4:] for frame in await answers.wait_for(4)] == bodies
            link.close()

    run(scenario())


def test_partially_sent_request_is_completed() -> None:
    large = b"r" * 20_000_000

    async def scenario() -> None:
        async with Peer(echo) as peer:
            link = await peer.connect()
            answers = Answers()
            link.send(REQUEST + large, answers)
            link.send(REQUEST + b"after it", answers)
            first, second = await answers.wait_for(2)
            assert (first or b"").endswith(large)
            assert (second or b"").endswith(b"after it")
            link.close()

    run(scenario())


def test_closed_link_notifies_each_waiting_call_once() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_frame(reader)
        writer.write(answer(request, b"the last"))
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        async with Peer(hang_up) as peer:
            link = await peer.connect()
            answers, ends = Answers(), Answers()
            link.on_close(lambda: ends(None))
            link.send(REQUEST, answers)
            link.send(REQUEST, answers)
            first, second = await answers.wait_for(2)
            assert (first or b"").endswith(b"the last")
            assert second is None
            await ends.wait_for(1)
            assert not link.is_open
            link.send(REQUEST, answers)
            assert len(answers.frames) == 2
            assert (await answers.wait_for(3))[2] is None
            link.close()
            link.on_close(lambda: ends(None))
            assert len(await ends.wait_for(2)) == 2

    run(scenario())


def test_closing_a_link_fails_its_waiting_calls() -> None:
    async def scenario() -> None:
        async with Peer(echo) as peer:
            link = await peer.connect()
            answers = Answers()
            link.send(REQUEST, answers)
            link.close()
            assert answers.frames == []
            assert await answers.wait_for(1) == [None]

    run(scenario())


@pytest.mark.parametrize(
    ("garbage", "event"),
    [
        pytest.param(b"\xff\xff\xff\xff", "invalid response size", id="a negative length"),
        pytest.param(b"\0\0\0\x03abc", "invalid response size", id="no room for a correlation id"),
        pytest.param(b"\x7f\xff\xff\xff", "invalid response size", id="a length beyond reason"),
        pytest.param(b"\0\0\0\x04nope", "unexpected response", id="an answer to another question"),
    ],
)
def test_protocol_violation_closes_the_link(
    garbage: bytes, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(garbage)

    async def scenario() -> None:
        async with Peer(talk) as peer:
            link = await peer.connect()
            answers = Answers()
            link.send(REQUEST, answers)
            assert await answers.wait_for(1) == [None]
            assert not link.is_open
            assert (
                f"{event}, connection to broker closed: peer=127.0.0.1:{peer.port}" in caplog.text
            )

    run(scenario())


def test_exception_in_a_response_handler_closes_only_its_link() -> None:
    def fail(frame: bytes | None) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        async with Peer(echo) as peer:
            link = await peer.connect()
            other = await peer.connect()
            answers, ends = Answers(), Answers()
            link.on_close(lambda: ends(None))
            link.send(REQUEST, fail)
            await ends.wait_for(1)
            other.send(REQUEST, answers)
            assert (await answers.wait_for(1))[0] is not None
            other.close()

    run(scenario())


def test_port_without_a_listener_refuses_the_connection() -> None:
    async def scenario() -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            with pytest.raises(Refused):
                await SocketNetwork().connect("127.0.0.1", bound.getsockname()[1], 5)

    run(scenario())


def test_a_host_without_a_name_cannot_be_reached() -> None:
    async def scenario() -> None:
        with pytest.raises(LinkBroken, match="cannot be reached"):
            await SocketNetwork().connect("no-such-host.invalid", 9, 10)

    run(scenario())


def test_connection_attempt_without_a_response_times_out() -> None:
    async def scenario() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)), pytest.raises(TimeoutError):
                await SocketNetwork().connect("127.0.0.1", port, 0.05)

    run(scenario())


def test_call_encodes_the_request_and_returns_the_response() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_frame(reader)
        correlation_id = int.from_bytes(request[4:8], "big")
        reply = {"error_code": 35, "api_keys": [], "throttle_time_ms": 7}
        frame = encode_response(API_VERSIONS, 3, correlation_id, reply)
        writer.write(len(frame).to_bytes(4, "big") + frame)
        request = await read_frame(reader)
        writer.write(answer(request, b""))

    async def scenario() -> None:
        body = {"client_software_name": "n", "client_software_version": "v"}
        async with Peer(serve) as peer:
            link = await peer.connect()
            message = await call(link, API_VERSIONS, 3, body, 5)
            assert (message["error_code"], message["throttle_time_ms"]) == (35, 7)
            with pytest.raises(LinkBroken, match="is not valid"):
                await call(link, API_VERSIONS, 3, body, 5)
            assert not link.is_open
            with pytest.raises(LinkBroken, match="closed"):
                await call(link, API_VERSIONS, 3, body, 5)

    run(scenario())


def test_call_without_a_response_closes_the_link_at_its_timeout() -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def scenario() -> None:
        async with Peer(ignore) as peer:
            link = await peer.connect()
            body = {"client_software_name": "n", "client_software_version": "v"}
            with pytest.raises(LinkBroken, match="in time"):
                await call(link, API_VERSIONS, 3, body, 0.05)
            assert not link.is_open

    run(scenario())


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def say_nothing(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


def test_only_a_link_that_the_peer_closed_is_lost() -> None:
    async def ended(link: Link) -> None:
        closed = asyncio.Event()
        link.on_close(closed.set)
        await closed.wait()

    async def scenario() -> None:
        async with Peer(hang_up) as peer:
            link = await peer.connect()
            assert not link.is_lost
            await ended(link)
            assert link.is_lost
        async with Peer(say_nothing) as peer:
            link = await peer.connect()
            with pytest.raises(LinkBroken):
                await call(link, API_VERSIONS, 0, {}, 0.01)
            await ended(link)
            assert not link.is_lost, "it was closed here, after a timeout"

    run(scenario())


def test_call_without_file_descriptors_is_a_broken_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use of an API imports its schema, which opens files."""

    def no_descriptors(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await read_frame(reader), b"\0\0"))

    async def scenario() -> None:
        async with Peer(serve) as peer:
            link = await peer.connect()
            for function, is_open in (("encode_request", True), ("decode_response", False)):
                with monkeypatch.context() as patch:
                    patch.setattr(f"headrace.wire.codec.{function}", no_descriptors)
                    with pytest.raises(LinkBroken, match="Too many open files"):
                        await call(link, API_VERSIONS, 0, {}, 5)
                assert link.is_open is is_open

    run(scenario())
