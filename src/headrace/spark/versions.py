"""The tested versions of PySpark, and the version that each feature needs. Imports no PySpark."""

import re
from importlib.util import find_spec
from pathlib import Path

from headrace.env.extras import install_command

Version = tuple[int, int]

OLDEST, NEWEST = (4, 0), (4, 3)
"""The versions that the tests run on."""
PIPELINES_SINCE = (4, 1)
AUTO_CDC_SINCE = (4, 2)
ARROW_STREAM_WRITER_SINCE = (4, 1)
READ_LIMITS_SINCE = (4, 2)
ARROW_TIME_ZONE_SINCE = (4, 2)
OPTIONS_SINCE = {
    "pushFilters": (4, 1),
    "maxOffsetsPerTrigger": READ_LIMITS_SINCE,
    "minOffsetsPerTrigger": READ_LIMITS_SINCE,
    "maxTriggerDelay": READ_LIMITS_SINCE,
}
"""Options of the data source, and the first version that can apply them."""

NAMES_SINCE = {"create_auto_cdc_flow": AUTO_CDC_SINCE}
"""Names of pyspark.pipelines that its first version lacks."""


class UnsupportedPySpark(ImportError):
    """PySpark is missing, or its version lacks a feature; the message has the command to run."""


def check(
    found: str | None, feature: str, extra: str, since: Version, until: Version | None = None
) -> Version:
    """Return the version of PySpark that was `found`, if the feature supports it."""
    version = None if found is None else version_of(found)
    if version is not None and since <= version <= (until or version):
        return version
    wanted = f"{shown(since)} or newer" if until is None else f"{shown(since)} to {shown(until)}"
    reason = "it is not installed" if found is None else f"PySpark {found} is installed"
    raise UnsupportedPySpark(
        f"{feature} requires PySpark {wanted}, but {reason}. Run: {install_command(extra)}"
    )


def version_of(text: str) -> Version:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def shown(version: Version) -> str:
    return ".".join(map(str, version))


def installed() -> str | None:
    """The version of PySpark, found without importing it; None if it is missing."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    found = re.search(r"__version__[^=]*=\s*[\"']([^\"']+)", text)
    return None if found is None else found[1]
