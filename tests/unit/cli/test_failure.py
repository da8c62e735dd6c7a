"""Messages of failed commands: one style for capitals and full stops."""

import pytest

from headrace.cli.failure import Failure, as_sentence


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("topic t does not exist", "Topic t does not exist."),
        ("Cannot read f: No such file.", "Cannot read f: No such file."),
        (
            "no broker responds. Start it and run again",
            "No broker responds. Start it and run again.",
        ),
        (
            "topic t is missing. Run: headrace topics create t",
            "Topic t is missing. Run: headrace topics create t",
        ),
        (
            "x is not installed. Run: pip install 'x>=1'",
            "X is not installed. Run: pip install 'x>=1'",
        ),
        ("num.partitions must be 1", "num.partitions must be 1."),
        ("--avro-schema requires --topic", "--avro-schema requires --topic."),
        (
            "unknown command 'tropics'. Did you mean 'topics'?",
            "Unknown command 'tropics'. Did you mean 'topics'?",
        ),
        ("headrace pipeline requires grpc", "headrace pipeline requires grpc."),
    ],
)
def test_message_is_a_sentence(message: str, shown: str) -> None:
    assert Failure(as_sentence(message)).message == shown


def test_name_of_a_file_keeps_its_case() -> None:
    assert Failure("plan is not JSON").message == "plan is not JSON."
