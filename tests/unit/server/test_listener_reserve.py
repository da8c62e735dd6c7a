"""A listener without file descriptors: it never closes a descriptor twice."""

import errno
import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.server.listener import Listener


def test_reserve_that_cannot_be_opened_again_is_not_closed_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[int] = []
    close = os.close

    def note(fd: int) -> None:
        closed.append(fd)
        close(fd)

    def no_descriptors(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    plane: Any = SimpleNamespace(
        listen=lambda *_: None, listeners={}, epoll=SimpleNamespace(unregister=lambda _: None)
    )
    admission: Any = SimpleNamespace(refused=lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock: Any = SimpleNamespace(accept=no_descriptors, fileno=server.fileno, close=server.close)
        rates: Any = None
        listener = Listener(plane, "PLAINTEXT", sock, admission, -1, -1, rates, is_internal=False)
        with monkeypatch.context() as patch:
            patch.setattr(os, "close", note)
            patch.setattr(os, "open", no_descriptors)
            listener.accept()
            listener.accept()
            listener.close()
    assert len(closed) == 1
