"""Publish materialized views atomically: a reader sees the last complete version of each.

Spark empties a view before it fills it. So each run fills a new directory, and the path of the
view is a symbolic link to the newest complete one:

    warehouse/orders -> _versions/orders/7

`_versions/orders/7.json` lists the files of the version, so a reader detects a missing one.

1. The catalog's location of a view is a version, never the link: Spark deletes its contents.
2. The link is changed after the flow has completed and its files were checked. A run that is
   interrupted leaves it unchanged.
3. Versions up to the published one are complete. Later ones are incomplete, and are deleted.
"""

import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.pipelines.tables import Tables
from headrace.pipelines.written import VERSIONS, file_list, record_files


class Versions:
    def __init__(self, spark: Any, tables: Tables, *, keep: int) -> None:
        """A reader lists files first and opens them later, so `keep` should be at least 2."""
        self._spark = spark
        self._tables = tables
        self._keep = keep
        self._begun: dict[str, View] = {}

    def begin(self, names: Iterable[str]) -> None:
        """Begin a new version of these views, which Spark fills. Skips views that do not exist."""
        for name in names:
            view = self._view(name)
            if view is None or name in self._begun:
                continue
            self._begun[name] = view
            self._locate(name, view.new_version())

    def publish(self, names: Collection[str]) -> None:
        """Show readers the new versions of these views, and discard those of all others."""
        for name in names:
            begun = self._begun.pop(name, None)
            view = begun or self._view(name)
            if view is None:
                continue
            if view.is_plain_directory:
                # The first run of the view: Spark has created the directory.
                self._locate(name, view.adopt())
            elif begun is not None:
                view.publish()
            else:
                # This run did not change the view. A later version is that of an interrupted run.
                self._discard(name, view)
            view.prune(self._keep)
        for name, view in self._begun.items():
            self._discard(name, view)
        self._begun = {}

    def _discard(self, name: str, view: "View") -> None:
        complete = view.published()
        if complete is not None:
            self._locate(name, complete)
            view.drop_unpublished()

    def leave(self) -> None:
        """End without publishing. The next run deletes versions that Spark might still fill."""
        self._begun = {}

    def published(self, name: str) -> Path | None:
        """The version that readers see; None if the view has no versions."""
        view = self._view(name)
        return None if view is None else view.published()

    def newest(self, name: str) -> Path:
        """The version to fill, after `begin`."""
        return self._begun[name].newest()

    def _view(self, name: str) -> "View | None":
        """A view whose versions this process can publish: a managed table of plain files."""
        table = self._tables.find(name)
        if table is None or not table.has_files or not table.is_managed:
            return None
        path = self._tables.path(table.location)
        return None if path is None else View(_root(path, name) / name)

    def _locate(self, name: str, directory: Path) -> None:
        table = self._tables.find(name)
        if table is not None and table.location == f"file://{directory}":
            return
        quoted = f"file://{directory}".replace("\\", r"\\").replace("'", r"\'")
        self._spark.sql(f"ALTER TABLE {self._tables.quoted(name)} SET LOCATION '{quoted}'")
        self._tables.move(name, f"file://{directory}")


def _root(location: Path, name: str) -> Path:
    """The directory of a view's database."""
    if location.parent.name == name and location.parent.parent.name == VERSIONS:
        return location.parent.parent.parent
    return location.parent


class View:
    """The directories of a view."""

    def __init__(self, link: Path) -> None:
        self.link = link
        self._versions = link.parent / VERSIONS / link.name

    @property
    def is_plain_directory(self) -> bool:
        return self.link.is_dir() and not self.link.is_symlink()

    def published(self) -> Path | None:
        if not self.link.is_symlink():
            return None
        return self.link.parent / self.link.readlink()

    def new_version(self) -> Path:
        """An empty directory after all complete versions."""
        if self.is_plain_directory:
            self.adopt()
        elif not self.link.is_symlink() and len(numbers := self._numbers()) == 1:
            # The process was killed in `adopt`, after the directory was renamed.
            self._point_at(self._versions / str(numbers[0]))
        published = self.published()
        # Never reuse a number: the published directory can be missing, and the server of an
        # interrupted run might still write to a later version.
        last = 0 if published is None else int(published.name)
        new = self._versions / str(max([last, *self._numbers()]) + 1)
        self.drop_unpublished()
        new.mkdir(parents=True)
        return new

    def adopt(self) -> Path:
        """Make a plain directory, which Spark has created and filled, a published version."""
        version = self._versions / str(max(self._numbers(), default=0) + 1)
        self._versions.mkdir(parents=True, exist_ok=True)
        self.link.rename(version)
        self._point_at(version)
        return version

    def publish(self) -> None:
        """Point the link at the newest version."""
        self._point_at(self.newest())

    def newest(self) -> Path:
        return self._versions / str(max(self._numbers()))

    def _point_at(self, version: Path) -> None:
        record_files(version)
        new = self._versions / "next"
        new.unlink(missing_ok=True)
        # Relative, so that the link is valid wherever the directory is mounted.
        new.symlink_to(version.relative_to(self.link.parent))
        new.replace(self.link)

    def drop_unpublished(self) -> None:
        published = self.published()
        last = 0 if published is None else int(published.name)
        for number in self._numbers():
            if number > last:
                self._delete(number)

    def prune(self, keep: int) -> None:
        for number in sorted(self._numbers())[:-keep]:
            self._delete(number)

    def _delete(self, number: int) -> None:
        version = self._versions / str(number)
        shutil.rmtree(version, ignore_errors=True)
        file_list(version).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        found: list[Path] = []
        with suppress(FileNotFoundError):
            found = list(self._versions.iterdir())
        return [int(path.name) for path in found if path.name.isdigit()]
