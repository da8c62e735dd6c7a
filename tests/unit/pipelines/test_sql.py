"""Definitions in SQL files: statements, their lines, what they define and read."""

from headrace.pipelines import sql
from headrace.pipelines.sql import reads_of, statements, without

TEXT = """\
-- Not a statement; only a comment.
CREATE MATERIALIZED VIEW sizes AS
SELECT length(text) AS size, ';' AS sign FROM silver;

CREATE OR REFRESH STREAMING TABLE IF NOT EXISTS `long ones` AS
SELECT * FROM STREAM(silver) JOIN STREAM other.names USING (id);
CREATE STREAMING TABLE target;
CREATE FLOW fill AS INSERT INTO target BY NAME SELECT * FROM STREAM(silver);
SET a.b = c;
"""


def test_a_statement_knows_its_lines_and_what_it_defines() -> None:
    found = statements(TEXT)
    assert [(each.line, each.kind, each.flow, each.target) for each in found] == [
        (2, "view", "sizes", "sizes"),
        (5, "table", "long ones", "long ones"),
        (7, "table", None, "target"),
        (8, None, "fill", "target"),
        (9, None, None, None),
    ]


def test_names_after_from_and_join_are_read() -> None:
    assert statements(TEXT)[1].reads == ("silver", "other.names")
    assert reads_of("SELECT ' FROM nothing' FROM a -- FROM b\n JOIN `c d` ON x = y") == ("a", "c d")


def test_omitted_statement_keeps_the_lines_of_others() -> None:
    rest = without(TEXT, {"sizes", "fill"})
    assert rest.count("\n") == TEXT.count("\n")
    assert [each.line for each in statements(rest)] == [5, 7, 9]


def test_table_properties_and_the_query_of_a_view_are_found() -> None:
    text = (
        "CREATE MATERIALIZED VIEW orders -- AS it is\n"
        "COMMENT 'TBLPROPERTIES (''no'' = ''no'')'\n"
        "TBLPROPERTIES ('a.key' = 'x, y', \"b\"= '') AS\nSELECT 'AS' FROM lines;\n"
        "CREATE MATERIALIZED VIEW other AS SELECT 1"
    )
    first, second = sql.statements(text)
    assert sql.properties(text, first) == {"a.key": "x, y", "b": ""}
    assert text[first.query_start : first.end].strip() == "SELECT 'AS' FROM lines"
    assert sql.properties(text, second) == {}


def test_format_of_a_table_is_found() -> None:
    text = (
        "CREATE STREAMING TABLE a USING Delta COMMENT 'USING csv' AS SELECT 1 FROM b USING (c);\n"
        "CREATE STREAMING TABLE d AS SELECT 1 FROM b JOIN e USING (c)"
    )
    first, second = sql.statements(text)
    assert sql.format_of(text, first) == "delta"
    assert sql.format_of(text, second) is None
