"""The pytest plugin for users: brokers as fixtures, and their logs for failed tests."""

import os
import signal
import socket
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from headrace.testing import BrokerFailed, RunningBroker

pytest_plugins = ["pytester"]

IS_INSTALLED = any(entry.name == "headrace" for entry in entry_points(group="pytest11"))
# At the end of a first run, hypothesis's plugin imports hypothesis, which pytest rewrites. Up to
# Python 3.11.7, parsing fails if a traceback is formatted at the same time: cpython#106905.
WITHOUT_HYPOTHESIS = ("-p", "no:hypothesispytest")
PLUGIN = WITHOUT_HYPOTHESIS + (() if IS_INSTALLED else ("-p", "headrace.testing.plugin"))


def run_tests(pytester: pytest.Pytester, source: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_subprocess("-p", "no:randomly", *PLUGIN)


def serves(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=30).close()
    except ConnectionRefusedError:
        return False
    return True


def test_each_test_has_a_fresh_broker_and_the_session_has_one(pytester: pytest.Pytester) -> None:
    result = run_tests(
        pytester,
        """
        import pytest

        seen = []

        @pytest.mark.parametrize("turn", [1, 2])
        def test_brokers(turn, headrace_broker, headrace_session_broker, tmp_path):
            assert tmp_path in headrace_broker.data_dir.parents
            assert headrace_broker.is_running
            seen.append((headrace_broker.pid, headrace_session_broker.pid))

        def test_they_were_different():
            (fresh, shared), (later, still_shared) = seen
            assert shared == still_shared
            assert len({fresh, later, shared}) == 3
        """,
    )
    result.assert_outcomes(passed=3)


def test_report_of_a_failed_test_has_the_log_of_its_broker(pytester: pytest.Pytester) -> None:
    result = run_tests(
        pytester,
        """
        def test_that_fails(headrace_broker):
            assert headrace_broker.address == "elsewhere"
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Headrace broker 127.0.0.1:*, from *", "*is ready*"])


def test_report_omits_log_lines_of_earlier_tests(pytester: pytest.Pytester) -> None:
    result = run_tests(
        pytester,
        """
        def write(broker, text):
            with broker.log_path.open("a") as log:
                log.write(text + "\\n")

        def test_that_passes(headrace_session_broker):
            write(headrace_session_broker, "of the first test")

        def test_that_fails(headrace_session_broker):
            write(headrace_session_broker, "of the second test")
            assert False
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*of the second test*"])
    result.stdout.no_fnmatch_line("of the first test")


def test_settings_are_given_by_a_fixture(pytester: pytest.Pytester) -> None:
    result = run_tests(
        pytester,
        """
        import pytest

        @pytest.fixture
        def headrace_settings():
            return {"num.partitions": "of course not"}

        def test_that_has_no_broker(headrace_broker):
            pass
        """,
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*num.partitions*of course not*"])


def test_killed_broker_restarts_on_its_port(broker: RunningBroker) -> None:
    address, pid = broker.address, broker.pid
    broker.kill()
    assert not broker.is_running
    assert not serves(address)
    broker.restart()
    assert broker.address == address
    assert broker.pid != pid
    assert serves(address)


def test_stopped_broker_is_not_running_and_keeps_its_data(broker: RunningBroker) -> None:
    broker.stop()
    assert not broker.is_running
    assert broker.data_dir.is_dir()
    broker.stop()  # There is nothing left to stop, and that is fine.


def test_error_of_a_broker_that_ended_has_its_output(broker: RunningBroker) -> None:
    os.kill(broker.pid, signal.SIGABRT)
    deadline = time.monotonic() + 40
    while broker.is_running:
        assert time.monotonic() < deadline
    with pytest.raises(BrokerFailed, match=r"exit code -6(.|\n)*is ready"):
        broker.stop()


def test_error_of_a_broker_that_cannot_start_has_its_output(broker: RunningBroker) -> None:
    with pytest.raises(BrokerFailed, match="exit code 1") as failed:
        RunningBroker.start(broker.data_dir)
    assert str(broker.data_dir) in str(failed.value)
    assert broker.is_running


def test_temporary_data_is_removed() -> None:
    with RunningBroker.start() as broker:
        directory = broker.data_dir
        assert directory.is_dir()
    assert not directory.parent.exists()


def test_data_in_a_given_directory_stays(tmp_path: Path) -> None:
    with RunningBroker.start(tmp_path / "mine") as broker:
        assert broker.is_running
    assert (tmp_path / "mine").is_dir()


def test_each_test_has_its_own_topic(pytester: pytest.Pytester) -> None:
    result = run_tests(
        pytester,
        """
        import pytest
        from headrace.client import connect

        names = []

        @pytest.mark.parametrize("turn", ["a/b", "ü"])
        def test_topics(turn, headrace_session_broker, headrace_topic):
            with connect(headrace_session_broker.address) as client:
                assert list(client.list_topics()) == [headrace_topic]
            names.append(headrace_topic)

        def test_of_another_broker(headrace_broker, headrace_topic):
            with connect(headrace_broker.address) as client:
                assert list(client.list_topics()) == [headrace_topic]

        def test_names_differ():
            assert len(set(names)) == 2
        """,
    )
    result.assert_outcomes(passed=4)


def test_first_record_of_a_group_needs_no_rebalance_delay(pytester: pytest.Pytester) -> None:
    result = run_tests(
        pytester,
        """
        import pytest
        from headrace.client import ConfigResource, connect

        NAME = "group.initial.rebalance.delay.ms"

        def value(broker):
            with connect(broker.address) as client:
                return client.describe_configs(ConfigResource("broker", "1"))[NAME].value

        def test_default(headrace_broker, headrace_session_broker):
            assert value(headrace_broker) == value(headrace_session_broker) == "0"

        class TestOverride:
            @pytest.fixture
            def headrace_settings(self):
                return {NAME: "7"}

            def test_override(self, headrace_broker):
                assert value(headrace_broker) == "7"
        """,
    )
    result.assert_outcomes(passed=2)
