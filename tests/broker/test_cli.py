"""The command line against a live broker, and without one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple
from uuid import uuid4

import pytest

from headrace.cli import main as cli
from headrace.client import ConfigChange, ConfigResource, connect
from headrace.testing import RunningBroker

COMMAND = [sys.executable, "-m", "headrace"]
DEADLINE_S = 40.0


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Headrace = Callable[..., Ended]


@pytest.fixture
def headrace(
    shared_broker: RunningBroker,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Headrace:
    """Runs a command in this process; the broker is named by the environment."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", shared_broker.address)

    def run(*arguments: str, stdin: bytes = b"") -> Ended:
        source = tmp_path / "stdin"
        source.write_bytes(stdin)
        capfd.readouterr()
        with source.open("rb") as file:
            monkeypatch.setattr(sys, "stdin", file)
            code = cli.main(arguments)
        return Ended(code, *capfd.readouterr())

    return run


@pytest.fixture
def topic(shared_broker: RunningBroker) -> str:
    name = f"cli-{uuid4().hex}"
    with connect(shared_broker.address) as client:
        client.create_topic(name, partitions=3)
    return name


def test_topics_are_created_listed_and_deleted(headrace: Headrace) -> None:
    name = f"cli-{uuid4().hex}"
    created = headrace("topics", "create", name, "--partitions", "2", "--config", "segment.ms=9999")
    assert created == (0, f"Created topic {name} with 2 partitions.\n", "")
    assert name in headrace("topics", "list").lines
    assert name in json.loads(headrace("topics", "list", "--json").out)
    again = headrace("topics", "create", name)
    assert again.code == 1
    assert "already exists" in again.err
    assert len(again.err.splitlines()) == 1
    assert headrace("topics", "create", name, "--if-not-exists") == (0, "", "")
    assert headrace("topics", "delete", name).code == 0
    assert name not in headrace("topics", "list").lines
    assert headrace("topics", "delete", name).code == 1
    assert headrace("topics", "delete", name, "--if-exists") == (0, "", "")


def test_repeated_topic_is_rejected_before_any_is_created(headrace: Headrace) -> None:
    name = f"cli-{uuid4().hex}"
    ended = headrace("topics", "create", name, name)
    assert (ended.code, f"'{name}' is named twice" in ended.err) == (2, True)
    assert name not in headrace("topics", "list").lines


def test_a_topic_is_described_and_altered(headrace: Headrace, topic: str) -> None:
    headrace("produce", topic, "--partition", "1", stdin=b"a\nb\n")
    described = headrace("topics", "describe", topic)
    assert f"{topic}: 3 partitions, replication factor 1" in described.lines
    assert headrace("topics", "alter", topic, "--partitions", "4", "--config", "retention.ms=7777")
    (facts,) = json.loads(headrace("topics", "describe", topic, "--json").out)
    assert facts["configs"] == {"retention.ms": "7777"}
    ends = [part["log_end_offset"] for part in facts["partitions"]]
    assert ends == [0, 2, 0, 0]
    assert headrace("topics", "alter", topic, "--unset", "retention.ms").code == 0
    (facts,) = json.loads(headrace("topics", "describe", topic, "--json").out)
    assert facts["configs"] == {}
    assert headrace("topics", "alter", topic, "--partitions", "2").code == 1
    assert headrace("topics", "alter", topic).code == 2


def test_settings_are_described_set_and_unset(headrace: Headrace, topic: str) -> None:
    assert headrace("configs", "set", "--topic", topic, "retention.ms=7777").code == 0
    shown = headrace("configs", "describe", "--topic", topic)
    assert [line.split() for line in shown.lines] == [
        ["name", "value", "from"],
        ["retention.ms", "7777", "topic"],
    ]
    assert headrace("configs", "unset", "--topic", topic, "retention.ms").code == 0
    assert "--all" in headrace("configs", "describe", "--topic", topic).out
    everything = json.loads(
        headrace("configs", "describe", "--topic", topic, "--all", "--json").out
    )
    assert "cleanup.policy" in [entry["name"] for entry in everything]
    wrong = headrace("configs", "set", "--topic", topic, "retention.mss=1")
    assert wrong.code == 1
    assert "retention.ms" in wrong.err
    broker = headrace("configs", "describe", "--broker", "1", "log.segment.bytes")
    assert broker.lines[1].split()[0] == "log.segment.bytes"
    assert headrace("configs", "describe", "--broker", "99").code == 1
    misspelt = headrace("configs", "set", "--brokers", "num.partition=2")
    assert "Did you mean num.partitions?" in misspelt.err
    setting = "consumer.session.timeout.ms"
    assert headrace("configs", "set", "--group", "readers", f"{setting}=50000").code == 0
    told = headrace("configs", "describe", "--group", "readers", setting).out
    assert "50000" in told
    assert "group" in told.split()[-1]
    refused = headrace("configs", "set", "--group", "readers", f"{setting}=1")
    assert "group.consumer.min.session.timeout.ms" in refused.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["configs", "unset", "--topic", "TOPIC", "retention.mss"], "Did you mean retention.ms?"),
        (["topics", "alter", "TOPIC", "--unset", "retention.mss"], "Did you mean retention.ms?"),
        (["configs", "unset", "--brokers", "num.partition"], "Did you mean num.partitions?"),
        (["configs", "unset", "--group", "g", "session"], "Unknown group setting 'session'"),
    ],
)
def test_unset_of_a_misspelled_setting_is_an_error(
    headrace: Headrace, topic: str, arguments: list[str], words: str
) -> None:
    done = headrace(*[topic if each == "TOPIC" else each for each in arguments])
    assert done.code == 1
    assert words in done.err


def test_unset_accepts_an_unknown_setting_that_the_broker_stores(
    headrace: Headrace, shared_broker: RunningBroker
) -> None:
    with connect(shared_broker.address) as client:
        client.alter_configs(ConfigResource("broker", ""), [ConfigChange("my.plugin", "1")])
        assert headrace("configs", "unset", "--brokers", "my.plugin").code == 0
        assert not client.describe_configs(ConfigResource("broker", ""), ["my.plugin"])


def test_produce_writes_a_record_per_line_and_consume_prints_a_line_per_record(
    headrace: Headrace, topic: str
) -> None:
    lines = [f"line {number}" for number in range(100)]
    produced = headrace("produce", topic, stdin="\n".join(lines).encode() + b"\n")
    assert produced == (0, "", "")
    consumed = headrace("consume", topic, "--until", "end")
    assert sorted(consumed.lines) == sorted(lines)
    counts = [
        len(headrace("consume", topic, "--until", "end", "--partition", str(partition)).lines)
        for partition in range(3)
    ]
    assert sorted(counts) == [33, 33, 34]


def test_last_line_needs_no_newline_and_empty_line_is_a_record(
    headrace: Headrace, topic: str
) -> None:
    headrace("produce", topic, "--partition", "0", stdin=b"a\n\nb")
    assert headrace("consume", topic, "--until", "end").out == "a\n\nb\n"


def test_line_can_be_longer_than_one_read(headrace: Headrace, topic: str) -> None:
    text = "x" * 200_000 + "\ny\n\n" + "z" * 100_000
    headrace("produce", topic, "--partition", "0", stdin=text.encode())
    assert headrace("consume", topic, "--until", "end").out == f"{text}\n"


def test_arguments_that_are_not_utf_8_keep_their_bytes(headrace: Headrace, topic: str) -> None:
    byte = os.fsdecode(b"\xff")
    headrace("produce", topic, "--key-separator", byte, "--header", f"a={byte}", stdin=b"k\xffv\n")
    (line,) = headrace("consume", topic, "--until", "end", "--json").lines
    record = json.loads(line)
    assert (record["key"], record["value"]) == ("k", "v")
    assert record["headers"] == [{"name": "a", "value_base64": "/w=="}]


def test_an_empty_separator_is_rejected(headrace: Headrace, topic: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        headrace("produce", topic, "--key-separator", "")


def test_keys_headers_and_the_template(headrace: Headrace, topic: str) -> None:
    options = ["--key-separator", r"\t", "--header", "a=1", "--header", "b=", "--partition", "2"]
    assert headrace("produce", topic, *options, stdin=b"k\tv\tw\n").code == 0
    form = r"{topic}:{partition}:{offset}\t{key}={value} [{headers}] {{}}"
    shown = headrace("consume", topic, "--until", "end", "--format", form)
    assert shown.out == f"{topic}:2:0\tk=v\tw [a=1,b=] {{}}\n"
    (record,) = headrace("consume", topic, "--until", "end", "--json").lines
    fields = json.loads(record)
    assert fields["key"] == "k"
    assert fields["value"] == "v\tw"
    assert fields["headers"] == [{"name": "a", "value": "1"}, {"name": "b", "value": ""}]
    time_text = headrace("consume", topic, "--until", "end", "--format", "{time}").out.strip()
    again = headrace("consume", topic, "--from", time_text, "--until", "end")
    assert again.out == "v\tw\n"


def test_a_line_without_the_separator_stops_after_those_before_it(
    headrace: Headrace, topic: str
) -> None:
    failed = headrace("produce", topic, "--key-separator", ":", stdin=b"a:1\nb\nc:3\n")
    assert failed.code == 1
    assert "Line 2 has no ':'" in failed.err
    assert headrace("consume", topic, "--until", "end").out == "1\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", "1"])
def test_compression_and_acks(headrace: Headrace, topic: str, codec: str, acks: str) -> None:
    headrace("produce", topic, "--compression", codec, "--acks", acks, stdin=b"x\n" * 50)
    assert headrace("consume", topic, "--until", "end").out == "x\n" * 50


def test_consume_starts_and_stops_at_the_given_positions(headrace: Headrace, topic: str) -> None:
    headrace("produce", topic, "--partition", "0", stdin=b"0\n1\n2\n3\n")

    def consumed(*options: str) -> list[str]:
        return headrace("consume", topic, "--partition", "0", *options).lines

    assert consumed("--from", "2", "--until", "end") == ["2", "3"]
    assert consumed("--from", "latest", "--until", "end") == []
    assert consumed("--until", "3") == ["0", "1", "2"]
    assert consumed("--max", "1") == ["0"]
    assert consumed("--from", "@0", "--until", "end") == ["0", "1", "2", "3"]
    assert consumed("--from", "2100-01-01", "--until", "end") == []
    assert consumed("--until", "1970-01-02") == []


def test_consume_prints_non_utf8_bytes_unchanged(
    headrace: Headrace, topic: str, shared_broker: RunningBroker
) -> None:
    with connect(shared_broker.address) as client:
        client.produce(topic, b"\xff\xfe", key=None)
    (record,) = headrace("consume", topic, "--until", "end", "--json").lines
    assert json.loads(record)["value_base64"] == "//4="
    piped = subprocess.run(
        [*COMMAND, "consume", topic, "--until", "end", "--format", b"{key} {value}\xfd"],
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert piped.stdout == b"null \xff\xfe\xfd\n"
    assert piped.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["consume", "t", "--format", "{vlaue}"], "{vlaue}"),
        (["consume", "t", "--from", "yesterday"], "yesterday"),
        (["consume", "t", "--from", "9" * 5000], "--from takes earliest"),
        (["consume", "t", "--until", "@9223372036854775808"], "--until takes end"),
        (["consume", "t", "--until", "never"], "never"),
        (["topics", "list", "--bootstrap-server", "nowhere:port"], "nowhere:port"),
        (["topics", "describe", os.fsdecode(b"\xff")], "is not UTF-8"),
        (["tropics"], "Did you mean 'topics'?"),
        (["--bootstrap-server", "x:1", "topics"], "follow the command"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(
    headrace: Headrace, arguments: list[str], words: str
) -> None:
    ended = headrace(*arguments)
    assert ended.code == 2
    assert words in ended.err
    assert len(ended.err.splitlines()) == 1


def test_an_unknown_topic_is_named(headrace: Headrace) -> None:
    ended = headrace("consume", "there-is-no-such-topic")
    assert ended.code == 1
    assert ended.err == "headrace: Unknown topic 'there-is-no-such-topic'.\n"


def test_unreachable_broker_is_named(headrace: Headrace) -> None:
    ended = headrace("topics", "list", "--bootstrap-server", "127.0.0.1:1")
    assert ended.code == 1
    assert "127.0.0.1:1: connection refused; is the broker running?" in ended.err


def test_help_names_every_command(headrace: Headrace) -> None:
    shown = headrace()
    assert all(f"  {name} " in shown.out for name in cli.COMMANDS)
    assert headrace("--version").out.startswith("headrace ")


@pytest.fixture
def started(
    shared_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts commands in separate processes."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", shared_broker.address)
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Where the tests run in the background, Ctrl-C may be ignored, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


Started = Callable[..., "subprocess.Popen[bytes]"]


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None
    return end


def test_ctrl_c_ends_a_command_without_a_message(started: Started, topic: str) -> None:
    producing = started("produce", topic, "--partition", "0")
    consuming = started("consume", topic)
    _pipe(producing.stdin).write(b"hello\n")
    _pipe(producing.stdin).flush()
    # The line comes through though its writer has not closed its end.
    assert _pipe(consuming.stdout).readline() == b"hello\n"
    for process in (consuming, producing):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out, err) == (130, b"", b"")


def test_closed_pipe_ends_the_command_without_a_message(
    started: Started, topic: str, shared_broker: RunningBroker
) -> None:
    with connect(shared_broker.address) as client:
        client.produce(topic, b"hello")
    consuming = started("consume", topic)
    assert _pipe(consuming.stdout).readline() == b"hello\n"
    _pipe(consuming.stdout).close()
    assert consuming.wait(DEADLINE_S) == 141
    assert _pipe(consuming.stderr).read() == b""


@pytest.mark.parametrize(
    ("output", "code", "error"),
    [
        (">/dev/full", 1, b"headrace: Cannot write the output: No space left on device.\n"),
        (">&-", 0, b""),
    ],
)
def test_unwritable_output_is_reported(output: str, code: int, error: bytes) -> None:
    command = ["sh", "-c", f'exec "$@" {output}', "sh", *COMMAND, "--version"]
    ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=DEADLINE_S, check=False)
    assert (ended.returncode, ended.stderr) == (code, error)


def test_progress_is_shown_on_a_terminal_only(
    started: Started, topic: str, shared_broker: RunningBroker
) -> None:
    controller, terminal = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, "produce", topic, "--bootstrap-server", shared_broker.address],
        stdin=subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    process.communicate(b"a\nb\nc\n", timeout=DEADLINE_S)
    said = b""
    deadline = time.monotonic() + DEADLINE_S
    while b"written" not in said and time.monotonic() < deadline:
        said += os.read(controller, 1_000)
    os.close(controller)
    assert f"3 records written to {topic}." in said.decode()


def test_cluster_describe_names_the_brokers_and_the_controller(
    headrace: Headrace, shared_broker: RunningBroker, topic: str
) -> None:
    described = json.loads(headrace("cluster", "describe", "--json").out)
    (broker,) = described["brokers"]
    assert broker["address"] == shared_broker.address
    assert broker["is_controller"]
    assert described["controller"] == broker["broker"]
    assert described["partitions"] == broker["leads"] > 0
    assert (broker["follows"], broker["out_of_sync"], described["under_replicated"]) == (0, 0, 0)
    first, titles, row = headrace("cluster", "describe").lines
    assert first.startswith(f"Cluster {described['cluster_id']}: ")
    assert first.endswith(", 0 under-replicated, 0 without a leader")
    assert titles.split() == ["broker", "address", "rack", "leads", "follows", "out", "of", "sync"]
    assert row.split()[:2] == [str(broker["broker"]), shared_broker.address]
    assert row.endswith("controller")
