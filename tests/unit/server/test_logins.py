"""The time limit of logins."""

from types import SimpleNamespace
from typing import Any, cast

from headrace.model.sasl import PLAIN
from headrace.security.sasl_machine import LOGIN_SECONDS_MAX
from headrace.server.logins import READ_BYTES, _Login
from headrace.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.codec import encode_request
from tests.unit.security.test_sasl_machine import Login


class Transport:
    """A client that has sent these bytes."""

    fd, pending = -1, 0

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.sent = b""

    def receive_into(self, view: memoryview) -> int:
        view[: len(self._data)] = self._data
        return len(self._data)

    def send(self, data: bytes, _more: bool) -> int:
        self.sent += data
        return len(data)


def framed(key: int, version: int, body: dict[str, Any]) -> bytes:
    frame = encode_request(key, version, 7, "test", body)
    return len(frame).to_bytes(4, "big") + frame


def test_login_is_not_late_while_the_broker_checks_its_password() -> None:
    checks: list[Any] = []
    succeeded: list[Any] = []
    logins = SimpleNamespace(
        loop=SimpleNamespace(add_reader=lambda *_: None, remove_reader=lambda _: None),
        plane=SimpleNamespace(monotonic=lambda: 1.0),
        scratch=memoryview(bytearray(READ_BYTES)),
        buffered=0,
        holding={},
        frame_bytes_max=1000,
        passwords=SimpleNamespace(knows=lambda *_: False, add=lambda *_: None),
        checks=0,
        check_job=lambda _: None,
        worker=SimpleNamespace(submit=lambda _, done: checks.append(done)),
        succeeded=lambda *args: succeeded.append(args),
    )
    data = framed(SASL_HANDSHAKE, 1, {"mechanism": PLAIN})
    data += framed(SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0secret"})
    transport = cast("Any", Transport(data))
    login = _Login(cast("Any", logins), Login().machine, transport, "", "", "", False)
    assert login.is_late(LOGIN_SECONDS_MAX)
    login.readable()
    (done,) = checks
    assert not login.is_late(LOGIN_SECONDS_MAX)
    done(True, None)
    assert succeeded
