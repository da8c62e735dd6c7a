"""docs/INVARIANTS.md defines exactly the rules that code, tests and pages cite."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "INVARIANTS.md"
CITED = re.compile(r"\b[BGI]\d{1,2}\b")


def cited() -> set[str]:
    paths = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/*.md")]
    texts = [path.read_text() for path in paths if path != PAGE]
    found = {rule for text in texts for rule in CITED.findall(text)}
    ranges = (re.findall(r"\b([BI])(\d+) to \1(\d+)", text) for text in texts)
    for each in ranges:
        for kind, first, last in each:
            found |= {f"{kind}{number}" for number in range(int(first), int(last))}
    return found


def test_every_cited_rule_is_defined_and_every_defined_rule_is_cited() -> None:
    defined = re.findall(r"^\| ([BI]\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(defined) == len(set(defined))
    assert cited() == set(defined)


def test_every_asserted_rule_is_defined_and_every_defined_rule_is_asserted() -> None:
    defined = re.findall(r"^\| ([CKLP]\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(defined) == len(set(defined))
    texts = [path.read_text() for path in ROOT.glob("src/**/*.py")]
    asserted = {rule for text in texts for rule in re.findall(r", f?\"([CKLP]\d+)[:\"]", text)}
    assert asserted == set(defined)
