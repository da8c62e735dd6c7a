"""Properties files that are written for child processes, read back."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.config.properties import read_properties
from headrace.ensemble.properties import properties_text


# A value's trailing blanks are cut where Kafka cuts them, when the setting is read.
@given(st.dictionaries(st.from_regex(r"[a-z][a-z.]*", fullmatch=True), st.text(max_size=20)))
def test_what_is_written_is_read_back(settings: dict[str, str]) -> None:
    text = properties_text(settings)
    assert text.isascii()
    assert read_properties(text) == settings
