"""Apache Kafka's Java client: one program of many scenarios, each of them a test here."""

import pytest

from tests.java.conftest import outcomes_of, sentences

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SENTENCES = [
    *(f"records come back as they were with {codec}" for codec in CODECS),
    *(f"a record of a megabyte comes back with {codec}" for codec in CODECS),
    *sentences("JavaClient"),
]


@pytest.fixture(scope="module")
def outcomes(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return outcomes_of("JavaClient", bootstrap, tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_java_client_finds_that(sentence: str, outcomes: dict[str, str]) -> None:
    assert outcomes.get(sentence) == "PASS"


def test_every_scenario_of_the_java_client_is_run(outcomes: dict[str, str]) -> None:
    assert set(outcomes) == set(SENTENCES)
