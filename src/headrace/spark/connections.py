"""Clients that tasks in the same Python worker share.

Spark reuses its workers for later tasks, and new connections would delay each micro-batch. A client
has one user at a time, and is returned unless an error occurred. An idle client sends no requests.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.client import Client, Consumer, Unreachable
from headrace.client.core.options import ClientOptions
from headrace.client.core.properties import security_settings
from headrace.spark.options import Connection, ReadOptions

_PATIENCE_MS = ClientOptions(()).operation_timeout_ms
_PAUSE_S = 0.2

_idle: dict[tuple[Any, ...], list[tuple[Client, Consumer]]] = {}


def connect(connection: Connection, *, patient: bool = True) -> Client:
    """Open a new client.

    With `patient`, it waits for a cluster that was available before. Otherwise a wrong address is
    an error immediately.
    """
    settings: dict[str, Any] = {
        **dict(connection.settings),
        **security_settings(dict(connection.security)),
    }
    client = Client(connection.bootstrap, **settings)
    patience_s = settings.get("operation_timeout_ms", _PATIENCE_MS) / 1000 if patient else 0.0
    deadline = time.monotonic() + patience_s
    while True:
        try:
            client.open()
        except Unreachable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_S)
        else:
            return client


@contextmanager
def borrowed(options: ReadOptions) -> Iterator[tuple[Client, Consumer]]:
    """Borrow a client and a consumer: idle ones with the same options, otherwise new ones."""
    # The key contains the process id, because a forked child must not use its parent's sockets.
    key = (os.getpid(), options.connection, options.consumer)
    kept = _idle.get(key)
    if kept:
        client, consumer = kept.pop()
    else:
        client = connect(options.connection)
        consumer = client.consumer(**dict(options.consumer))
    try:
        yield client, consumer
        consumer.assign({})
    except BaseException:
        client.close()
        raise
    _idle.setdefault(key, []).append((client, consumer))


def close_idle() -> None:
    """Close the clients of this process that are not in use."""
    for key in [key for key in _idle if key[0] == os.getpid()]:
        for client, _ in _idle.pop(key, ()):
            client.close()
