"""A recording of the tour: an SVG whose frames follow each other."""

from pathlib import Path
from xml.etree import ElementTree

from rich.text import Text

from headrace.tour.recording import FRAME_S, Recording

SVG = "{http://www.w3.org/2000/svg}"


def test_each_frame_is_shown_in_turn_and_the_busiest_one_without_animation(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "tour.svg")
    for line, rate in (("first <step>", 500.0), ("second & more", 1800.0), ("third", 0.0)):
        recording.add(Text(line), rate)
    recording.write()
    root = ElementTree.fromstring((tmp_path / "tour.svg").read_text(encoding="utf-8"))
    still, *frames = root.findall(f"{SVG}g")
    assert still.get("class") == "still"
    assert [group.get("class") for group in frames] == ["frame"] * 3
    first, second, _ = frames
    assert f"animation-delay: {FRAME_S:g}s" in str(second.get("style"))
    assert _text(first) == "first\u00a0<step>"
    assert _text(still) == _text(second) == "second\u00a0&\u00a0more"


def _text(group: ElementTree.Element) -> str:
    return "".join(each.text or "" for each in group.iter(f"{SVG}text")).strip()
