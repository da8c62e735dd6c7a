"""Errors of the command line's parser."""

import pytest

from headrace.cli import main as cli


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["topics"], "ACTION is missing: use one of create, list, describe, alter, delete"),
        (["topics", "create", "t", "--partions", "3"], "Did you mean --partitions?"),
        (["topics", "create", "t", "--partition", "3"], "Did you mean --partitions?"),
        (["topics", "descibe"], "Did you mean describe?"),
        (["consume", "t", "--fron=latest"], "Did you mean --from?"),
    ],
)
def test_errors_suggest_the_nearest_option_or_action(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err
