"""A pipeline's graph: what depends on what, and how it is drawn."""

from itertools import pairwise
from xml.etree import ElementTree

from headrace.pipelines.drawing import columns, svg, text
from headrace.pipelines.graph import Flow, Graph, Node, graph_of

NODES = [
    Node("topic orders", "topic"),
    Node("bronze", "table"),
    Node("cleaned", "temporary view"),
    Node("silver", "table"),
    Node("gold & more", "view"),
    Node("out", "sink", "topic alerts"),
]
FLOWS = [
    Flow("gold & more", "gold & more", ("silver", "bronze"), "b.sql", 3),
    Flow("bronze", "bronze", ("topic orders",), "a.py", 1),
    Flow("cleaned", "cleaned", ("bronze",), "a.py", 5),
    Flow("silver", "silver", ("cleaned",), "a.py", 9),
    Flow("to_topic", "out", ("silver",), "a.py", 12),
]
GRAPH = Graph("shop", {node.name: node for node in NODES}, {flow.name: flow for flow in FLOWS})


def test_a_graph_is_the_same_after_it_was_written_and_read() -> None:
    assert graph_of(GRAPH.to_json()) == GRAPH


def test_reader_of_a_flow_depends_on_it_also_through_views() -> None:
    assert GRAPH.dependents({"cleaned"}) == {"silver", "gold & more", "to_topic"}
    assert GRAPH.dependents({"to_topic"}) == set()


def test_an_eager_flow_waits_for_a_run_that_makes_what_it_reads() -> None:
    assert set(GRAPH.waves(()).values()) == {0}
    made = GRAPH.waves({"bronze", "cleaned", "to_topic"})
    assert made == {"bronze": 0, "cleaned": 1, "silver": 1, "gold & more": 1, "out": 2}


def test_flows_into_one_table_run_together() -> None:
    more = Flow("more", "silver", ("bronze",), "a.py", 20)
    graph = Graph("shop", GRAPH.nodes, {**GRAPH.flows, "more": more})
    assert graph.waves({"more"}) == {
        **dict.fromkeys(("bronze", "cleaned"), 0),
        **dict.fromkeys(("silver", "gold & more", "out"), 1),
    }


def test_a_node_stands_to_the_right_of_all_that_it_reads() -> None:
    assert columns(GRAPH) == [
        ["topic orders"],
        ["bronze"],
        ["cleaned"],
        ["silver"],
        ["gold & more", "out"],
    ]


def test_graph_with_a_cycle_is_drawn() -> None:
    nodes = {name: Node(name, "table") for name in ("a", "b")}
    flows = {"a": Flow("a", "a", ("b",), "x", 1), "b": Flow("b", "b", ("a",), "x", 2)}
    graph = Graph("round", nodes, flows)
    assert sorted(name for column in columns(graph) for name in column) == ["a", "b"]
    assert svg(graph)


def test_the_picture_is_svg_and_names_everything() -> None:
    picture = ElementTree.fromstring(svg(GRAPH))
    words = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert words[::2] == [node.name for node in NODES]
    assert words[-1] == "sink, topic alerts, by to_topic"
    assert len([each for each in picture.iter() if "marker-end" in each.attrib]) == 6
    assert svg(Graph("empty"))


def test_long_pipeline_is_drawn_from_top_to_bottom_within_a_page() -> None:
    names = [f"table_number_{number}" for number in range(8)]
    nodes = {name: Node(name, "table") for name in names}
    flows = {b: Flow(b, b, (a,), "a.py", 1) for a, b in pairwise(names)}
    picture = ElementTree.fromstring(svg(Graph("long", nodes, flows)))
    assert int(picture.attrib["width"]) <= 830
    boxes = [each.attrib for each in picture.iter() if "rx" in each.attrib]
    assert len({box["x"] for box in boxes}) == 1
    assert [int(box["y"]) for box in boxes] == sorted(int(box["y"]) for box in boxes)
    short = ElementTree.fromstring(svg(Graph("short", dict(list(nodes.items())[:2]))))
    assert int(short.attrib["width"]) <= 830


def test_the_terminal_gets_a_tree() -> None:
    assert text(GRAPH).splitlines() == [
        "topic orders",
        "└─ bronze (streaming table)",
        "   ├─ gold & more (materialized view)",
        "   └─ cleaned (temporary view)",
        "      └─ silver (streaming table)",
        "         ├─ gold & more (above)",
        "         └─ out (sink, topic alerts, by to_topic)",
    ]
