"""docs/INVARIANTS.md defines exactly the rules that code, tests and pages cite."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "INVARIANTS.md"
CITED = re.compile(r"\b[BCGIKLP]\d{1,2}\b")
LABEL = re.compile(r"^ *([A-Z]\d{1,2})  \S", re.MULTILINE)


def rules(section: str = "") -> list[str]:
    """The rules that the page defines, or one of its sections."""
    text = PAGE.read_text()
    if section:
        text = text.split(f"## {section}\n")[1].partition("\n## ")[0]
    return re.findall(r"^\| ([A-Z]\d+) \|", text, re.MULTILINE)


def cited() -> set[str]:
    paths = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/*.md")]
    texts = [path.read_text() for path in paths if path != PAGE]
    found = {rule for text in texts for rule in CITED.findall(text)}
    ranges = (re.findall(r"\b([BCIKLP])(\d+) to \1(\d+)", text) for text in texts)
    for each in ranges:
        for kind, first, last in each:
            found |= {f"{kind}{number}" for number in range(int(first), int(last))}
    return found


def test_every_cited_rule_is_defined_and_every_defined_rule_is_cited() -> None:
    defined = rules()
    assert len(defined) == len(set(defined))
    assert cited() == set(defined)


def test_every_asserted_rule_is_defined_and_every_defined_rule_is_asserted() -> None:
    texts = [path.read_text() for path in ROOT.glob("src/**/*.py")]
    asserted = {rule for text in texts for rule in re.findall(r", f?\"([CKLP]\d+)[:\"]", text)}
    assert asserted == set(rules("Assertions on objects in memory"))


def test_a_module_labels_a_rule_with_a_letter_only_if_the_page_defines_it() -> None:
    texts = [path.read_text() for path in ROOT.glob("src/**/*.py")]
    labels = {label for text in texts for label in LABEL.findall(text)}
    assert {"P1", "P8"} <= labels <= set(rules())
