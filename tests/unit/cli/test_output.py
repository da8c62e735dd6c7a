"""Tables of commands."""

import pytest

from headrace.cli.output import print_table


def test_table_shows_control_characters_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "mechanisms"), [("\x1b[31mré d\n\u202e", ["a", "b\r"])])
    assert capsys.readouterr().out.splitlines() == [
        "name                  mechanisms",
        r"\x1b[31mré d\n\u202e  a,b\r",
    ]
