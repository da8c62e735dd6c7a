"""Finds the jars of a ZooKeeper server, and downloads them from Maven Central if none are found.

Owns the download cache. Does not start Java. Blocks.

1. A jar gets its name in the cache only after its SHA-256 matches the pinned one.
2. Several processes can fill the cache simultaneously: each writes temporary files, then renames.
"""

import hashlib
import importlib.util
import os
import re
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from headrace.env.java import NotInstalled

VERSION = "3.9.5"
HOME_VARIABLE = "HEADRACE_ZOOKEEPER_HOME"
MIRROR_VARIABLE = "HEADRACE_MAVEN_URL"
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
SYSTEM_DIRECTORIES = (Path("/usr/share/java"), Path("/usr/share/zookeeper"), Path("/opt/zookeeper"))
"""Debian's packages and the usual directory of ZooKeeper's own archive."""
_TIMEOUT_S = 30.0
_CHUNK_BYTES = 256 * 1024

Report = Callable[[str], None]


class Jar(NamedTuple):
    group: str
    name: str
    version: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.jar"

    @property
    def path(self) -> str:
        """The path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.file}"


# No logging provider: without one, a server starts in half the time.
JARS = (
    Jar(
        "org.apache.zookeeper",
        "zookeeper",
        VERSION,
        1_367_207,
        "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0",
    ),
    Jar(
        "org.apache.zookeeper",
        "zookeeper-jute",
        VERSION,
        260_263,
        "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a",
    ),
    Jar(
        "org.slf4j",
        "slf4j-api",
        "2.0.17",
        69_908,
        "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832",
    ),
    Jar(
        "io.dropwizard.metrics",
        "metrics-core",
        "4.2.37",
        131_928,
        "3c70d19049d10f474ab803706b9c0677bcf5fd9e1afeb4f6c496f62e38b27678",
    ),
    Jar(
        "org.xerial.snappy",
        "snappy-java",
        "1.1.10.8",
        2_445_419,
        "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc",
    ),
)
_NAMES = tuple(jar.name for jar in JARS)
_FILE = re.compile(rf"({'|'.join(map(re.escape, _NAMES))})(-\d[\w.]*)?\.jar")


def class_path(report: Report | None = None) -> str:
    """The class path of a server. Downloads the jars if this machine has none.

    Raises NotInstalled. `report` takes lines about a download; the default is standard error.
    """
    return os.pathsep.join(str(jar) for jar in find_jars() or install(report))


def find_jars() -> list[Path]:
    """The jars of the first complete directory: HEADRACE_ZOOKEEPER_HOME, cache, system, PySpark.

    Empty if no directory has all jars.
    """
    home = os.environ.get(HOME_VARIABLE)
    if home:
        found = _jars_in(Path(home))
        if missing := [name for name in _NAMES if name not in found]:
            raise NotInstalled(
                f"{HOME_VARIABLE} is {home}, which lacks jars of ZooKeeper: {', '.join(missing)}. "
                f"Correct {HOME_VARIABLE}, or unset it."
            )
        return [found[name] for name in _NAMES]
    for directory in (cache_directory(), *SYSTEM_DIRECTORIES, *_pyspark_directories()):
        found = _jars_in(directory)
        if len(found) == len(_NAMES):
            return [found[name] for name in _NAMES]
    return []


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "headrace" / f"zookeeper-{VERSION}"


def install(report: Report | None = None) -> list[Path]:
    """Downloads the jars that the cache lacks. Raises NotInstalled."""
    report = report or _to_standard_error
    directory = cache_directory()
    missing = [jar for jar in JARS if not (directory / jar.file).is_file()]
    mirror = (os.environ.get(MIRROR_VARIABLE) or MAVEN_CENTRAL).rstrip("/")
    if missing:
        size = sum(jar.size for jar in missing) / 1e6
        report(f"Downloading ZooKeeper {VERSION} ({size:.1f} MB) from {_without_password(mirror)}")
    for number, jar in enumerate(missing, start=1):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _download(jar, f"{mirror}/{jar.path}", directory / jar.file)
        except (OSError, HTTPException, ValueError) as error:
            raise NotInstalled(_failure(jar, error, directory)) from None
        report(f"  {number}/{len(missing)} {jar.file} ({jar.size / 1e6:.1f} MB)")
    return [directory / jar.file for jar in JARS]


class _WrongChecksum(ValueError):
    pass


def _download(jar: Jar, url: str, target: Path) -> None:
    # A new opener reads http_proxy, https_proxy and no_proxy.
    with urllib.request.build_opener().open(url, timeout=_TIMEOUT_S) as response:
        descriptor, part = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            digest = hashlib.sha256()
            with open(descriptor, "wb") as file:
                while chunk := response.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != jar.sha256:
                raise _WrongChecksum(f"its SHA-256 is {digest.hexdigest()}, not {jar.sha256}")
            os.chmod(part, 0o644)
            os.replace(part, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)


def _failure(jar: Jar, error: Exception, directory: Path) -> str:
    if isinstance(error, urllib.error.HTTPError):
        reason = f"HTTP status {error.code}"
    elif isinstance(error, urllib.error.URLError):
        reason = str(getattr(error.reason, "strerror", None) or error.reason)
    else:
        reason = str(getattr(error, "strerror", None) or error)
    return (
        f"Cannot download ZooKeeper to {directory}: {jar.file}: {reason}. Check the network, "
        f"HTTPS_PROXY and {MIRROR_VARIABLE} (the URL of a Maven mirror), and run 'headrace "
        f"zookeeper install'. Or set {HOME_VARIABLE} to the directory of an unpacked ZooKeeper."
    )


def _jars_in(directory: Path) -> dict[str, Path]:
    """The first file of each required jar, from the directory itself or its lib."""
    found: dict[str, Path] = {}
    for folder in (directory, directory / "lib"):
        with suppress(OSError):
            for path in sorted(folder.iterdir()):
                match = _FILE.fullmatch(path.name)
                if match is not None:
                    found.setdefault(match[1], path)
    return found


def _pyspark_directories() -> list[Path]:
    # Importing PySpark would take half a second.
    spec = importlib.util.find_spec("pyspark")
    folders = [] if spec is None else spec.submodule_search_locations or ()
    return [Path(folder, "jars") for folder in folders]


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
