"""docs/ARCHITECTURE.md against the code: packages, layers, and names of files."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "headrace"


def layers() -> list[set[str]]:
    """The layers of packages, lowest first. Names in parentheses do not exist yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rows = project["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [{name.strip() for name in re.split(r"[|:]", row)} for row in reversed(rows)]
    return [{name for name in row if not name.startswith("(")} for row in names]


def test_package_table_has_every_package_in_its_layer() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == sorted(int(number) for number, _ in rows)
    shown: dict[int, set[str]] = {}
    for number, name in rows:
        shown.setdefault(int(number), set()).add(name)
    assert shown == dict(enumerate(layers(), start=1))


def test_named_files_exist() -> None:
    files = [str(path) for part in ("src", "tests") for path in (ROOT / part).rglob("*.py")]
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", PAGE)) - {"setup.py"}
    assert len(named) > 50
    assert sorted(name for name in named if not any(f.endswith(f"/{name}") for f in files)) == []
    folders = re.findall(r"`((?:[a-z_]+/)+)`", PAGE)
    assert [
        name for name in folders if not any((each / name).exists() for each in (ROOT, PACKAGE))
    ] == []


def test_each_walk_has_a_diagram() -> None:
    walks = re.findall(
        r"^## (A (?:record|leader|group) [^\n]*)\n+(.*?)(?=^## )", PAGE, re.M | re.DOTALL
    )
    assert len(walks) == 5
    assert [title for title, text in walks if not text.startswith("```mermaid\nsequence")] == []
