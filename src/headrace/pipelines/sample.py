"""Write projects for `headrace pipeline init`. The sample project is a shop that reads orders.

Its files are in `shop/`: `project/` has those of both formats, `json/` and `avro/` the others.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_TEMPLATES = Path(__file__).parent / "shop"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def write_project(directory: Path, *, name: str, bootstrap: str, avro: bool = False) -> list[Path]:
    """Write the shop into a directory that is new or empty, and return its files."""
    texts: dict[Path, str] = {}
    for part in ("project", "avro" if avro else "json"):
        texts |= dict(_texts(_TEMPLATES / part))
    return write_files(directory, texts, name=name, bootstrap=bootstrap)


def write_files(
    directory: Path, texts: Mapping[Path, str], *, name: str, bootstrap: str
) -> list[Path]:
    """Write the files of a project, and replace {{name}}, {{bootstrap}} and {{storage}} in them."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"invalid project name {name!r}. Use letters, digits, '.', '_', '-'")
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(f"directory {directory} is not empty. Choose another one")
    storage = f"file://{directory.resolve()}/.headrace/checkpoints"
    values = {"name": name, "bootstrap": bootstrap, "storage": storage}
    written = []
    for file, text in sorted({**texts, Path(".gitignore"): ".headrace/\n__pycache__/\n"}.items()):
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        for key, value in values.items():
            text = text.replace(f"{{{{{key}}}}}", value)
        path.write_text(text)
        written.append(path)
    return written


def _texts(template: Path) -> Iterator[tuple[Path, str]]:
    for path in template.rglob("*"):
        # An installed package has compiled files next to its sources.
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(template), path.read_text()
