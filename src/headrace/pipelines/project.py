"""A project: its specification, and the files of its state.

Reads `spark-pipeline.yml` and names the files in `.headrace/`. Starts nothing.

1. The specification has Spark's format; a relative `storage` is relative to the project.
2. The state between runs is in `.headrace/`. Without it, a run reads the topics from their start.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.pipelines.security import CONFIG

BOOTSTRAP = "headrace.bootstrap"
"""The setting with the address of the brokers, for transformations."""
WAREHOUSE = "headrace.warehouse"
"""The setting for the directory of tables: a path or a URI that Hadoop knows."""
VERSIONS = "headrace.view.versions"
"""The setting for the number of complete versions that are kept of a materialized view."""
VERSIONS_DEFAULT = "3"
FORMAT = "spark.sql.sources.default"
"""Spark's setting for the format of tables that name none."""
FALLBACK_BOOTSTRAP = "localhost:9092"
SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
_KEYS = {
    *("name", "storage", "catalog", "database", "schema", "configuration", "libraries"),
    # An extension of Headrace, which Spark's own command rejects.
    "format",
}
_STATE = ".headrace"
_ESCAPED = re.compile(r"[\s\"%#?\[\]{}|\\^`<>]")


# Exit codes of `headrace pipeline`, besides 0: documented in docs/PIPELINES.md.
FAILED, REJECTED, LOCKED = 1, 2, 3


class ProjectError(Exception):
    """The project or the command is invalid, so nothing ran. The text has the next step."""

    exit_code = REJECTED


@dataclass(frozen=True)
class Spec:
    name: str
    storage: str
    catalog: str | None
    database: str | None
    configuration: Mapping[str, str]
    libraries: tuple[str, ...]
    """A file, or a directory and everything below it as `directory/**`."""
    format: str | None = None
    """The format of tables that name none; None for Spark's own default."""


@dataclass(frozen=True)
class Project:
    directory: Path
    spec: Spec

    @property
    def state(self) -> Path:
        return self.directory / _STATE

    @property
    def warehouse(self) -> Path:
        """The default directory of tables."""
        return self.state / "warehouse"

    @property
    def prefix(self) -> str:
        """The catalog and the database of the tables, with a dot after each."""
        return f"{self.spec.catalog or 'spark_catalog'}.{self.spec.database or 'default'}."

    @property
    def last_run(self) -> Path:
        return self.state / "last-run.json"

    @property
    def refresh(self) -> Path:
        """The tables of a full refresh that has not ended; the file exists only until then."""
        return self.state / "refresh.json"

    @property
    def remote(self) -> Path:
        """The session on a Spark Connect server; the file exists only until it has ended."""
        return self.state / "remote.json"

    @property
    def graph(self) -> Path:
        return self.state / "graph.json"

    @property
    def picture(self) -> Path:
        return self.state / "graph.svg"

    @property
    def storage(self) -> str:
        """The absolute URI of the directory for checkpoints, as Spark requires it."""
        if ":/" in self.spec.storage:
            return self.spec.storage
        return f"file://{self.directory / self.spec.storage}"

    @property
    def checkpoints(self) -> Path | None:
        """The local directory of checkpoints; None if `storage` is on another file system."""
        scheme, _, rest = self.storage.partition(":")
        if scheme != "file":
            return None
        return Path("/" + rest.lstrip("/")) / "_checkpoints"

    def configuration(
        self,
        bootstrap: str | None,
        given: Mapping[str, str] | None = None,
        config: str | None = None,
    ) -> dict[str, str]:
        """The settings of the session. Options of the command override those of the project."""
        wanted = {BOOTSTRAP: FALLBACK_BOOTSTRAP, **self.spec.configuration, **(given or {})}
        if self.spec.format is not None:
            wanted.setdefault(FORMAT, self.spec.format)
        if bootstrap:
            wanted[BOOTSTRAP] = bootstrap
        if config:
            wanted[CONFIG] = os.path.abspath(config)
        elif CONFIG in wanted:
            wanted[CONFIG] = str(self.directory / wanted[CONFIG])
        return wanted

    @staticmethod
    def versions_kept(configuration: Mapping[str, str]) -> int:
        kept = configuration.get(VERSIONS, VERSIONS_DEFAULT)
        if not kept.isdigit() or int(kept) < 1:
            raise ProjectError(f"{VERSIONS} is {kept!r}. Use a whole number of at least 1")
        return int(kept)

    def files(self) -> list[Path]:
        """The files that define the pipeline, in order of their names."""
        found: set[Path] = set()
        for pattern in self.spec.libraries:
            every = self.directory.glob(f"{pattern}/*" if pattern.endswith("/**") else pattern)
            found |= {path for path in every if path.is_file() and "__pycache__" not in path.parts}
        return sorted(found)

    def shown(self, path: str | Path) -> str:
        """The path of a file for display, relative to the project if the file is inside it."""
        try:
            return str(Path(path).relative_to(self.directory))
        except ValueError:
            return str(path)

    def prepare_state(self) -> None:
        """Create `.headrace/`. Reject one that was moved, because tables contain absolute paths."""
        try:
            self._prepare_state()
        except OSError as error:
            raise ProjectError(
                f"cannot write to {self.state}: {error.strerror}. Tables, catalog and history of "
                "the project are stored there, so make it writable"
            ) from error

    def _prepare_state(self) -> None:
        self.state.mkdir(exist_ok=True)
        record = self.state / "place"
        if record.exists() and record.read_text(encoding="utf-8") != str(self.directory):
            raise ProjectError(
                f"{self.state} belongs to the former project directory {record.read_text()}, and "
                "its tables cannot be moved. Remove it; the next run fills the tables from the "
                "topics"
            )
        if not record.exists():
            # Rename, because a kill or a full disk would leave an empty file.
            new = record.with_name("place.new")
            new.write_text(str(self.directory), encoding="utf-8")
            new.replace(record)


def open_project(directory: Path) -> Project:
    """The project of a directory; ProjectError if the directory has none."""
    directory = directory.resolve()
    found = [directory / name for name in SPEC_NAMES if (directory / name).is_file()]
    if not found:
        raise ProjectError(
            f"{directory} is not a pipeline: it has no {SPEC_NAMES[0]}. Choose another directory, "
            "or create a pipeline with 'headrace pipeline init NAME'"
        )
    project = Project(directory, _read_spec(found[0]))
    _check_owner(project)
    if _ESCAPED.search(str(project.checkpoints or "")):
        raise ProjectError(
            f"storage {str(project.checkpoints)!r} contains characters that Spark escapes in URIs, "
            "such as spaces. Choose a path without them"
        )
    return project


def _check_owner(project: Project) -> None:
    """Reject a storage in `.headrace/` of another directory: the project was moved or copied."""
    checkpoints = project.checkpoints
    if checkpoints is None or _STATE not in checkpoints.parts:
        return
    if not checkpoints.is_relative_to(project.state):
        raise ProjectError(
            f"storage {project.storage} belongs to another project directory than "
            f"{project.directory}. Change it to file://{project.state}/checkpoints"
        )


def _read_spec(path: Path) -> Spec:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ProjectError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ProjectError(f"{path} must contain keys and values, such as 'name: shop'")
    return spec_of(content, str(path))


def spec_of(content: Mapping[str, Any], path: str) -> Spec:
    """Check the keys and types of a specification."""
    unknown = sorted(map(str, content.keys() - _KEYS))
    if unknown:
        raise ProjectError(f"{path}: unknown key {unknown[0]!r}; the keys are {_listed(_KEYS)}")
    for key in ("name", "storage"):
        if not isinstance(content.get(key), str):
            raise ProjectError(f"{path}: {key!r} is missing or not text")
    configuration = content.get("configuration") or {}
    if not isinstance(configuration, dict):
        raise ProjectError(f"{path}: 'configuration' must contain settings and their values")
    for key, value in configuration.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ProjectError(f"{path}: configuration {key}: the value must be in quotes")
    return Spec(
        content["name"],
        os.path.expanduser(content["storage"]),
        content.get("catalog"),
        content.get("database", content.get("schema")),
        configuration,
        tuple(_library(each, path) for each in content.get("libraries") or ()),
        _format(content, path),
    )


def _format(content: Mapping[str, Any], path: str) -> str | None:
    name = content.get("format")
    if name is not None and not isinstance(name, str):
        raise ProjectError(f"{path}: 'format' is {name!r}. Use a name, such as iceberg or delta")
    return None if name is None else name.lower()


def _library(entry: Any, path: str) -> str:
    try:
        pattern = entry["glob"]["include"]
    except (KeyError, TypeError):
        pattern = None
    if not isinstance(pattern, str):
        raise ProjectError(
            f"{path}: a library must have the form 'glob: {{include: transformations/**}}'"
        )
    plain = pattern.removesuffix("/**")
    if any(sign in plain for sign in "*?["):
        raise ProjectError(f"{path}: {pattern!r} is neither a file nor a directory with '/**'")
    return pattern


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def write_json(path: Path, value: Any) -> None:
    """Replace a file atomically, because another process can read it at the same time."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def read_json(path: Path) -> Any:
    """The value in a file; None if the file does not exist."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
