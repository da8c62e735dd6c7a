"""The pytest plugin: brokers as fixtures, and their logs in the report of a failed test.

Every pytest run loads it if Headrace is installed. So it imports only modules that pytest itself
imports, and a broker starts only when a test uses its fixture.
"""

import re
import uuid
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.testing.broker import LoggingProcess, RunningBroker, known_brokers

if TYPE_CHECKING:
    from headrace.testing.cluster import RunningCluster
    from headrace.testing.secure import SecureBroker

_log_sizes = pytest.StashKey[dict[LoggingProcess, int]]()


@pytest.fixture(scope="session")
def headrace_settings() -> Mapping[str, str]:
    """Settings of the brokers that the other fixtures start; override it to set some.

    If the session's broker uses it, the override needs `scope="session"`.
    """
    return {}


@pytest.fixture
def headrace_broker(
    tmp_path: Path, headrace_settings: Mapping[str, str]
) -> Iterator[RunningBroker]:
    """A new broker on a free port, with its data under `tmp_path`."""
    with RunningBroker.start(tmp_path / "headrace", settings=headrace_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def headrace_session_broker(
    tmp_path_factory: pytest.TempPathFactory, headrace_settings: Mapping[str, str]
) -> Iterator[RunningBroker]:
    """One broker for the complete run (per worker with pytest-xdist). See `headrace_topic`."""
    data_dir = tmp_path_factory.mktemp("headrace") / "session"
    with RunningBroker.start(data_dir, settings=headrace_settings) as broker:
        yield broker


@pytest.fixture
def headrace_cluster(
    tmp_path: Path, headrace_settings: Mapping[str, str]
) -> "Iterator[RunningCluster]":
    """Three new brokers and a ZooKeeper, with their data under `tmp_path`."""
    from headrace.testing.cluster import RunningCluster

    directory = tmp_path / "cluster"
    with RunningCluster.start(directory, settings=headrace_settings, links=True) as cluster:
        yield cluster


@pytest.fixture
def headrace_secure(
    tmp_path: Path, headrace_settings: Mapping[str, str]
) -> "Iterator[SecureBroker]":
    """A new broker with TLS, SASL/SCRAM, ACLs and the super user `admin`."""
    from headrace.testing.secure import SecureBroker

    with SecureBroker.start(tmp_path / "secure", settings=headrace_settings) as broker:
        yield broker


@pytest.fixture
def headrace_topic(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new topic with num.partitions partitions.

    The topic is on the broker or cluster of the test, which ends with it. Otherwise it is on the
    session's broker, and is deleted after the test.
    """
    from headrace.client import connect

    used = ("headrace_broker", "headrace_secure", "headrace_cluster")
    fixture = next((each for each in used if each in request.fixturenames), None)
    broker = request.getfixturevalue(fixture or "headrace_session_broker")
    settings = broker.admin.headrace if fixture == "headrace_secure" else {}
    settings = {"bootstrap": broker.address, **settings}
    about = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name.removeprefix("test_")).strip("-")
    name = f"{about[:80]}-{uuid.uuid4().hex[:8]}"
    with connect(**settings) as client:
        client.create_topic(name)
    yield name
    if fixture is None:
        with connect(**settings) as client:
            client.delete_topic(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # The log of a shared broker has lines of earlier tests: report only later lines.
    item.stash[_log_sizes] = {broker: broker.log_size() for broker in known_brokers}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        sizes = item.stash.get(_log_sizes, {})
        for broker in sorted(known_brokers, key=lambda broker: broker.address):
            text = broker.log(since=sizes.get(broker, 0))
            if text:
                title = f"Headrace broker {broker.address}, from {broker.log_path}"
                report.sections.append((title, text))
    return report
