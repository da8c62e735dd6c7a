"""Java's .properties syntax."""

import pytest

from headrace.config.properties import read_properties
from headrace.config.setting import ConfigError


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("\n \n\t\n", {}),
        ("# a comment\n! another\n  # indented", {}),
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a : b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb c", {"a": "b c"}),
        ("  a=b  ", {"a": "b  "}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a==b", {"a": "=b"}),
        ("a= :b", {"a": ":b"}),
        ("a=b#c", {"a": "b#c"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a\\:b:c", {"a:b": "c"}),
        ("a=b,\\\n   c", {"a": "b,c"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# no comment", {"a": "b# no comment"}),
        ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
        ("\\\n#a=b", {"#a": "b"}),
        ("a=b\\", {"a": "b"}),
        ("# no continuation\\\na=b", {"a": "b"}),
        ("a=\\t\\n\\r\\f\\\\\\q", {"a": "\t\n\r\f\\q"}),
        ("a=\\u0041\\u00e9", {"a": "Aé"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("caf\u00e9=\u00fc", {"café": "ü"}),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, properties: dict[str, str]) -> None:
    assert read_properties(text) == properties


@pytest.mark.parametrize("digits", ["12", "12g4", " 123", "\uff11\uff12\uff13\uff14"])
def test_an_escape_that_is_not_hexadecimal_is_named_with_its_line(digits: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_properties(f"\n\na=\\u{digits}")
    assert refusal.value.message.startswith(f"Line 3 has {digits!r} after \\u")
