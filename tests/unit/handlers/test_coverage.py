"""The listing of handlers/ is the table of supported APIs, and each head has the true versions."""

import ast
import re
from pathlib import Path

import pytest

import headrace.handlers
from headrace.wire.apis import API_VERSIONS, APIS, Api

HANDLERS = Path(str(headrace.handlers.__file__)).parent

each_api = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: str(api.name))


def head_of(api: Api) -> str:
    source = (HANDLERS / f"{api.schema}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def versions(api: Api) -> str:
    first, last = api.version_min, api.version_max
    if first == last:
        return str(first)
    return f"{first} and {last}" if last == first + 1 else f"{first} to {last}"


def test_package_has_one_module_per_api_and_nothing_else() -> None:
    modules = {path.stem for path in HANDLERS.glob("*.py")} - {"__init__"}
    assert modules == {api.schema for api in APIS.values()}
    assert [path.name for path in HANDLERS.iterdir() if path.is_dir()] in ([], ["__pycache__"])


def test_module_is_named_after_its_api() -> None:
    words = {api.schema: re.sub(r"(?<!^)(?=[A-Z])", "_", api.name).lower() for api in APIS.values()}
    assert {schema: name for schema, name in words.items() if schema != name} == {}


@each_api
def test_first_line_has_name_versions_and_purpose(api: Api) -> None:
    noun = "version" if api.version_min == api.version_max else "versions"
    begin = f"{api.name}, {noun} {versions(api)}: "
    assert head_of(api).startswith(begin)
    purpose = head_of(api).removeprefix(begin).partition("\n")[0]
    assert re.fullmatch(r"[a-z].*\.(  # HOT)?", purpose)
    assert purpose.endswith("Brokers only.") == api.is_internal


@each_api
def test_head_has_bullets_with_the_versions_last_and_then_the_gaps(api: Api) -> None:
    _, bullets, *gaps = head_of(api).split("\n\n")
    assert re.fullmatch(r"(- .*\n(  .*\n)*)+", bullets + "\n")
    last = bullets[bullets.rindex("\n- ") + 1 :] if "\n- " in bullets else bullets
    assert re.match(rf"- Versions: {versions(api)}[.,]", last)
    assert [text.startswith("Gaps: ") for text in gaps] in ([], [True])


@each_api
def test_head_states_the_required_permission(api: Api) -> None:
    asks_nothing = api.is_internal or api.key == API_VERSIONS
    assert ("\n- Requires: " in head_of(api)) is not asks_nothing
