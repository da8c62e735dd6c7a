"""Apache Kafka's Java client: one program of many scenarios, each of them a test here."""

import re
import subprocess
from pathlib import Path

import pytest

from bench import kafka

SOURCE = Path(__file__).with_name("JavaClient.java")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SENTENCES = [
    *(f"records come back as they were with {codec}" for codec in CODECS),
    *(f"a record of a megabyte comes back with {codec}" for codec in CODECS),
    *(
        sentence
        for sentence in re.findall(r'all\.put\("([^"]+)", this::', SOURCE.read_text())
        if sentence
    ),
]


@pytest.fixture(scope="module")
def outcomes(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of each scenario: "PASS", or "FAIL" and why."""
    classes = tmp_path_factory.mktemp("classes")
    jars = kafka.class_path()
    subprocess.run(
        ["javac", "-proc:none", "-d", str(classes), "-cp", jars, str(SOURCE)], check=True
    )
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options.append(f"-Dlog4j2.configurationFile={kafka.CACHE / 'tools-log4j2.properties'}")
    done = subprocess.run(
        [kafka.java(), *options, "-cp", f"{classes}:{jars}", "JavaClient", bootstrap],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    print(done.stderr)  # Shown by pytest with what failed.
    found = (line.split("\t", 2) for line in done.stdout.splitlines() if "\t" in line)
    return {sentence: " ".join([verdict, *why]) for verdict, sentence, *why in found}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_java_client_finds_that(sentence: str, outcomes: dict[str, str]) -> None:
    assert outcomes.get(sentence) == "PASS"


def test_every_scenario_of_the_java_client_is_asked_for(outcomes: dict[str, str]) -> None:
    assert set(outcomes) == set(SENTENCES)
