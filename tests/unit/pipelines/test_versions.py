"""Versions of a materialized view: the link of readers always points at a complete one."""

from dataclasses import replace
from pathlib import Path
from typing import cast

from headrace.pipelines.tables import Table, Tables
from headrace.pipelines.versions import Versions, View


def fill(directory: Path, text: str) -> None:
    (directory / "part-0").write_text(text)


def read(view: View) -> list[str]:
    return [path.read_text() for path in view.link.iterdir()]


def kept(view: View) -> list[str]:
    return sorted(path.name for path in (view.link.parent / "_versions" / "orders").iterdir())


def first_run(place: Path) -> View:
    view = View(place / "orders")
    view.link.mkdir()
    fill(view.link, "first")
    view.adopt()
    return view


def test_directory_of_the_first_run_becomes_a_version(tmp_path: Path) -> None:
    view = first_run(tmp_path)
    assert view.link.is_symlink()
    assert not view.link.readlink().is_absolute()
    assert (read(view), kept(view)) == (["first"], ["1", "1.json"])


def test_readers_see_a_new_version_once_it_is_published(tmp_path: Path) -> None:
    view = first_run(tmp_path)
    new = view.new_version()
    assert list(new.iterdir()) == []
    fill(new, "second")
    assert read(view) == ["first"]
    view.publish()
    assert read(view) == ["second"]
    assert view.published() == new


def test_version_of_an_interrupted_run_is_deleted_by_the_next(tmp_path: Path) -> None:
    view = first_run(tmp_path)
    fill(view.new_version(), "partial")
    new = View(view.link).new_version()
    assert list(new.iterdir()) == []
    assert read(view) == ["first"]
    # A Spark Connect server might still write to version 2.
    assert kept(view) == ["1", "1.json", "3"]


def test_kill_during_the_first_publication_loses_no_version(tmp_path: Path) -> None:
    view = first_run(tmp_path)
    # `adopt` renames the directory, then lists its files and creates the link.
    view.link.unlink()
    (tmp_path / "_versions" / "orders" / "1.json").unlink()
    View(view.link).new_version()
    assert read(view) == ["first"]
    assert kept(view) == ["1", "1.json", "2"]


def test_last_versions_are_kept(tmp_path: Path) -> None:
    view = first_run(tmp_path)
    for number in range(2, 6):
        fill(view.new_version(), str(number))
        view.publish()
        view.prune(3)
    assert read(view) == ["5"]
    assert kept(view) == ["3", "3.json", "4", "4.json", "5", "5.json"]


def test_directory_of_an_earlier_release_is_adopted_before_the_next_run(tmp_path: Path) -> None:
    view = View(tmp_path / "orders")
    view.link.mkdir()
    fill(view.link, "old")
    new = view.new_version()
    assert read(view) == ["old"]
    assert new.name == "2"


class Catalog:
    """One view in the catalog, and Spark's statements about it."""

    def __init__(self, directory: Path) -> None:
        location = directory.as_uri()
        self.table = Table("orders", location, "parquet", is_managed=True, is_partitioned=False)
        self.statements: list[str] = []

    def find(self, name: str) -> Table:
        return self.table

    def path(self, uri: str) -> Path:
        return Path(uri.removeprefix("file://"))

    def quoted(self, name: str) -> str:
        return name

    def move(self, name: str, location: str) -> None:
        self.table = replace(self.table, location=location)

    def sql(self, statement: str) -> None:
        self.statements.append(statement)


def test_leftover_of_an_interrupted_run_is_not_published_by_a_run_without_changes(
    tmp_path: Path,
) -> None:
    view = first_run(tmp_path)
    leftover = view.new_version()
    fill(leftover, "partial")
    catalog = Catalog(leftover)
    versions = Versions(catalog, cast(Tables, catalog), keep=3)
    # An incremental view without new source rows completes, and begins no version.
    versions.publish(["orders"])
    assert read(view) == ["first"]
    assert kept(view) == ["1", "1.json"]
    assert catalog.path(catalog.table.location) == view.published()
    versions.publish(["orders"])
    assert len(catalog.statements) == 1
