"""A live broker for tests with invalid input, and a client that must not be affected by it."""

from collections.abc import Iterator

import pytest

from headrace.testing import RunningBroker
from tests.broker.raw import WatchedBroker


@pytest.fixture(scope="module")
def target_settings() -> dict[str, str]:
    """A module's own settings for its broker: override it there."""
    return {}


@pytest.fixture(scope="module")
def target_process(
    tmp_path_factory: pytest.TempPathFactory, target_settings: dict[str, str]
) -> Iterator[WatchedBroker]:
    directory = tmp_path_factory.mktemp("target") / "data"
    watched = WatchedBroker(RunningBroker.start(directory, settings=target_settings))
    yield watched
    watched.close()


@pytest.fixture
def target(target_process: WatchedBroker) -> Iterator[WatchedBroker]:
    """The module's broker; each test checks that it still responds and logged no internal error."""
    target_process.begin()
    yield target_process
    target_process.end()
