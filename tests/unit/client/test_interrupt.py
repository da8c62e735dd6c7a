"""Ctrl-C while the blocking client opens a connection."""

import selectors
import socket
from typing import Any

import pytest

from headrace.client import connect


@pytest.mark.parametrize(
    ("owner", "method"), [(selectors.DefaultSelector, "register"), (socket.socket, "setblocking")]
)
def test_interrupt_while_connecting_is_raised_unchanged(
    monkeypatch: pytest.MonkeyPatch, owner: Any, method: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as server:
        client = connect(f"127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(owner, method, interrupt)
        with pytest.raises(KeyboardInterrupt), client:
            pass
