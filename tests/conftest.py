"""Fixtures of all tests. A live broker comes from the same plugin that users have."""

import os
import re
import signal
import uuid

import hypothesis
import pytest

from headrace.testing import RunningBroker, plugin

# Speed is the benchmark's to judge: a busy machine must not fail a test.
hypothesis.settings.register_profile(
    "headrace", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("headrace")


def pytest_configure(config: pytest.Config) -> None:
    # pytest loads the plugin automatically if Headrace is installed, but not in a source tree.
    if not config.pluginmanager.has_plugin("headrace"):
        config.pluginmanager.register(plugin, "headrace")
    # A shell script in the background, or nohup, ignores these signals, and child processes inherit
    # that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def broker(headrace_broker: RunningBroker) -> RunningBroker:
    """A fresh broker: the test may kill it."""
    return headrace_broker


@pytest.fixture
def shared_broker(headrace_session_broker: RunningBroker) -> RunningBroker:
    """A broker that other tests use, too: quicker, and to be left running."""
    return headrace_session_broker


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the shared broker, for tests of real clients.

    With HEADRACE_TEST_BOOTSTRAP=host:port they run against that broker instead: run them against
    Apache Kafka to see that what they ask for is what Kafka does.
    """
    given = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
    if given:
        return given
    address: str = request.getfixturevalue("headrace_session_broker").address
    return address


@pytest.fixture
def new_topic(request: pytest.FixtureRequest) -> str:
    """The name of a topic that does not exist yet, derived from the name of the test."""
    about = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    return f"{about[:80]}-{uuid.uuid4().hex[:8]}"
