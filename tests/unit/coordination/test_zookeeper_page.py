"""docs/ZOOKEEPER.md against the code."""

from pathlib import Path

from headrace.coordination import layout

PAGE = Path(__file__).resolve().parents[3] / "docs" / "ZOOKEEPER.md"


def test_the_page_has_every_path() -> None:
    text = PAGE.read_text(encoding="utf-8")
    constants = [value for name, value in vars(layout).items() if name.isupper()]
    paths = {each for each in constants if isinstance(each, str) and each.startswith("/")}
    paths |= set(layout.BASE_NODES)
    assert len(paths) > 12
    leaves = [path for path in paths if not any(other.startswith(path + "/") for other in paths)]
    assert [path for path in sorted(leaves) if f"`{path}" not in text] == []
