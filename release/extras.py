"""Measures packages, size on disk and install time of each extra. Prints a Markdown table.

    python -m release.extras dist/headrace-<version>-<tags>.whl

Each extra is installed into a new environment, without pip's cache.
"""

import sys
import tempfile
import tomllib
from pathlib import Path

from release.environments import ROOT, install, new_environment, run


def extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [name for name in project["optional-dependencies"] if name != "dev"]


def size_mb(python: Path) -> float:
    """The size of the installed packages, without pip, setuptools and bytecode."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    root = Path(run(python, "-c", code).strip())
    files = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return (
        sum(
            path.stat().st_size
            for path in files
            if not path.relative_to(root).parts[0].startswith(("pip", "setuptools"))
        )
        / 1e6
    )


def packages(python: Path) -> int:
    listing = run(python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
    names = [line.partition("==")[0] for line in listing.splitlines() if "==" in line]
    return len([name for name in names if name not in ("pip", "setuptools")])


def main(wheel: str) -> None:
    print("| install | packages | size | time |\n| --- | --- | --- | --- |", flush=True)
    for extra in ("", *extras()):
        with tempfile.TemporaryDirectory(prefix="headrace-extra-") as name:
            python = new_environment(Path(name), sys.executable)
            path = Path(wheel).resolve()
            requirement = f"{path}[{extra}]" if extra else str(path)
            seconds = install(python, "--no-cache-dir", requirement)
            shown = f"`headrace[{extra}]`" if extra else "`headrace`"
            size = f"{size_mb(python):.0f} MB"
            print(f"| {shown} | {packages(python)} | {size} | {seconds:.0f} s |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
