"""Fixtures of every test. A live broker comes from the plugin that users get, too."""

import pytest

from headrace.testing import RunningBroker, plugin


def pytest_configure(config: pytest.Config) -> None:
    # The plugin is there by itself where Headrace is installed, but not in a bare source tree.
    if not config.pluginmanager.has_plugin("headrace"):
        config.pluginmanager.register(plugin, "headrace")


@pytest.fixture
def broker(headrace_broker: RunningBroker) -> RunningBroker:
    """A fresh broker: the test may kill it."""
    return headrace_broker


@pytest.fixture
def shared_broker(headrace_session_broker: RunningBroker) -> RunningBroker:
    """A broker that other tests use, too: quicker, and to be left running."""
    return headrace_session_broker
