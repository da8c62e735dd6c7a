"""A recording of the tour: an SVG whose frames follow each other."""

from pathlib import Path
from xml.etree import ElementTree

from rich.text import Text

from headrace.tour.recording import FRAME_S, Recording

SVG = "{http://www.w3.org/2000/svg}"


def test_every_frame_is_seen_in_its_turn_and_the_last_where_nothing_moves(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "tour.svg")
    for line in ("first <step>", "second & more"):
        recording.add(Text(line))
    recording.write()
    root = ElementTree.fromstring((tmp_path / "tour.svg").read_text(encoding="utf-8"))
    still, first, second = root.findall(f"{SVG}g")
    assert [group.get("class") for group in (still, first, second)] == ["last", "frame", "frame"]
    assert f"animation-delay: {FRAME_S:g}s" in str(second.get("style"))
    assert _text(first) == "first\u00a0<step>"
    assert _text(still) == _text(second) == "second\u00a0&\u00a0more"


def _text(group: ElementTree.Element) -> str:
    return "".join(each.text or "" for each in group.iter(f"{SVG}text")).strip()
