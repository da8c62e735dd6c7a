"""`headrace tour` as a process: its output, and that it leaves no process or file."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest

BEFORE = r"compared with ([\d,]+)/s with one partition"
AFTER = r"  ([\d,]+) records/s are acknowledged, compared"


@contextmanager
def started(place: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A tour with its temporary files in `place`."""
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", "tour", "--fast", "--plain", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(place)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[str], words: str) -> str:
    """What it prints, up to a line with these words."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"it ended without {words!r}:\n{said}")


def processes_in(place: Path) -> list[str]:
    """The command lines that name a directory: brokers and ZooKeeper name theirs."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{place}/" in command:
                found.append(command)
    return found


def number(said: str, pattern: str) -> int:
    found = re.search(pattern, said)
    assert found is not None, f"no {pattern!r} in:\n{said}"
    return int(found[1].replace(",", ""))


@pytest.mark.timeout(240)
def test_tour_prints_eight_steps_with_measurements(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with started(place, "--record", str(tmp_path / "tour.svg")) as process:
        said, _ = process.communicate()
        assert process.returncode == 0, said
    assert re.findall(r"^Step (\d) of 8:", said, re.MULTILINE) == list("12345678")
    # The file of the first record, and the consumer that reads it.
    assert "broker-2/mill-0/00000000000000000000.log" in said
    assert re.search(r"through broker 2; idle: consumer [AB]", said)
    # One broker is too little, three are enough.
    assert "Each broker of this tour is limited to" in said
    assert number(said, r"the queue grew by .* to ([\d,]+);") > 0
    assert number(said, AFTER) > number(said, BEFORE)
    # Without replicas, partitions of a dead broker are unavailable; with them, others lead.
    assert number(said, r"s: ([\d,]+) acknowledged on partitions") == 0
    assert re.search(r"broker \d is killed; new leaders after [\d.]+ s\. \d: broker \d", said)
    assert "in sync: 2 of 3 replicas of 6 partitions" in said
    assert "in sync: 3 of 3 replicas of 6 partitions" in said
    epoch = number(said, r"The controller epoch rises from (\d+)")
    assert number(said, r"epoch rises from \d+ to (\d+)") > epoch
    assert re.search(r"it has partitions [\d, and]+ \(.* kB\) and is the leader of \d", said)
    # Counted at three places, and never a record less.
    counts = re.findall(
        r"acknowledged ([\d,]+), read ([\d,]+), lost (\d+), in the log twice (\d)", said
    )
    assert len(counts) == 3
    for acknowledged, read, lost, twice in counts:
        assert acknowledged == read
        assert (lost, twice) == ("0", "0")
    live, rebuilt = re.findall(r"(\w{16}) (?:in the group|rebuilt)", said)
    assert live == rebuilt
    assert "replayed state: the same" in said
    assert len(ElementTree.parse(tmp_path / "tour.svg").getroot()) > 8
    assert (processes_in(place), list(place.iterdir())) == ([], [])


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (signal.SIGINT, "starting ZooKeeper"),
        (signal.SIGTERM, "Step 1 of 8"),
        (signal.SIGINT, "it has the only replica"),
    ],
)
def test_a_tour_that_is_interrupted_leaves_no_process_and_no_file(
    tmp_path: Path, told: signal.Signals, words: str
) -> None:
    with started(tmp_path) as process:
        said = lines_until(process, words)
        process.send_signal(told)
        rest, _ = process.communicate()
        assert process.returncode == 128 + told, said + rest
    assert (processes_in(tmp_path), list(tmp_path.iterdir())) == ([], [])


def test_step_option_requires_a_terminal(tmp_path: Path) -> None:
    with started(tmp_path, "--step") as process:
        assert process.wait(60) == 2
    assert list(tmp_path.iterdir()) == []
