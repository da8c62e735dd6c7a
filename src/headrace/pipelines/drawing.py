"""Draws a pipeline: SVG for a page, a tree of text for the terminal. Pure.

1. A diagram is drawn from left to right if it fits into 830 pixels, else from top to bottom.
"""

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from headrace.pipelines.graph import Graph, Node

_WIDTH_MIN, _HEIGHT = 120, 46
_GAP_ALONG, _GAP_ACROSS = 44, 22
"""Between nodes in the direction of the arrows, and between neighbours."""
_MARGIN = 16
_PAGE_WIDTH = 830
_NAME_LETTERS_MAX, _ABOUT_LETTERS_MAX = 40, 56
_NAME_LETTER_WIDTH, _ABOUT_LETTER_WIDTH = 7.6, 5.6
# Light boxes and dark letters on white: legible on any background.
_COLORS = {
    "topic": ("#fdf0d5", "#b7791f"),
    "source": ("#f1f1f1", "#6b7280"),
    "table": ("#dbeafe", "#1d4ed8"),
    "view": ("#dcfce7", "#15803d"),
    "temporary view": ("#ffffff", "#94a3b8"),
    "sink": ("#fdf0d5", "#b7791f"),
}
_WORDS = {"view": "materialized view", "table": "streaming table"}


def edges(graph: Graph) -> list[tuple[str, str]]:
    """Pairs of a node that a flow reads and the node that it writes, each once."""
    pairs = [(read, flow.target) for flow in graph.flows.values() for read in flow.reads]
    return list(dict.fromkeys(pair for pair in pairs if set(pair) <= graph.nodes.keys()))


def columns(graph: Graph) -> list[list[str]]:
    """Columns of nodes from left to right. Each node is to the right of the nodes that it reads."""
    before: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for read, target in edges(graph):
        before[target].append(read)
    depth = dict.fromkeys(graph.nodes, 0)
    # A cycle, which Spark rejects later, would not end: the depth is at most the number of nodes.
    for _ in graph.nodes:
        for name, reads in before.items():
            deeper = max((depth[each] + 1 for each in reads if each != name), default=0)
            depth[name] = min(max(depth[name], deeper), len(graph.nodes))
    found: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in graph.nodes:
        found[depth[name]].append(name)
    rows: dict[str, float] = {}
    for column in found:
        given = {name: number for number, name in enumerate(column)}
        column.sort(key=lambda name: (_middle(before[name], rows, given[name]), given[name]))
        rows |= {name: float(number) for number, name in enumerate(column)}
    return [column for column in found if column]


def _middle(reads: list[str], rows: dict[str, float], otherwise: float) -> float:
    known = [rows[name] for name in reads if name in rows]
    return sum(known) / len(known) if known else otherwise


class _Layout(NamedTuple):
    """The position of each node, and the size of the diagram."""

    places: dict[str, tuple[int, int]]
    box_width: int
    width: int
    height: int
    is_vertical: bool


def _layout(graph: Graph, *, is_vertical: bool) -> _Layout:
    ranks = columns(graph)
    box_width = max((_label_width(graph, node) for node in graph.nodes.values()), default=0)
    size = (_HEIGHT, box_width) if is_vertical else (box_width, _HEIGHT)
    along, across = size[0] + _GAP_ALONG, size[1] + _GAP_ACROSS
    most = max(map(len, ranks), default=0)
    places = {}
    for number, rank in enumerate(ranks):
        begin = _MARGIN + (most - len(rank)) * across // 2
        for at, name in enumerate(rank):
            place = (_MARGIN + number * along, begin + at * across)
            places[name] = place[::-1] if is_vertical else place
    length = 2 * _MARGIN + max(len(ranks) * along - _GAP_ALONG, 0)
    breadth = 2 * _MARGIN + max(most * across - _GAP_ACROSS, 0)
    width, height = (breadth, length) if is_vertical else (length, breadth)
    return _Layout(places, box_width, width, height, is_vertical)


def _label_width(graph: Graph, node: Node) -> int:
    name, about = _labels(graph, node)
    widest = max(len(name) * _NAME_LETTER_WIDTH, len(about) * _ABOUT_LETTER_WIDTH)
    return max(_WIDTH_MIN, int(widest) + 20)


def _labels(graph: Graph, node: Node) -> tuple[str, str]:
    return _short(node.name, _NAME_LETTERS_MAX), _short(_about(graph, node), _ABOUT_LETTERS_MAX)


def svg(graph: Graph) -> str:
    layout = _layout(graph, is_vertical=False)
    if layout.width > _PAGE_WIDTH:
        layout = min(layout, _layout(graph, is_vertical=True), key=lambda each: each.width)
    width, height = layout.width, layout.height
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif">',
        f"<title>{escape(graph.pipeline)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="#64748b"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(_arrow(layout, read, target) for read, target in edges(graph)),
        *(_box(graph, layout, node) for node in graph.nodes.values()),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _arrow(layout: _Layout, read: str, target: str) -> str:
    (x1, y1), (x2, y2) = layout.places[read], layout.places[target]
    if layout.is_vertical:
        x1, y1, x2 = x1 + layout.box_width // 2, y1 + _HEIGHT, x2 + layout.box_width // 2
        bend = max((y2 - y1) // 2, _GAP_ALONG // 2)
        control = f"{x1} {y1 + bend} {x2} {y2 - bend}"
    else:
        x1, y1, y2 = x1 + layout.box_width, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
        bend = max((x2 - x1) // 2, _GAP_ALONG // 2)
        control = f"{x1 + bend} {y1} {x2 - bend} {y2}"
    return (
        f'<path d="M{x1} {y1}C{control} {x2} {y2}" fill="none" '
        'stroke="#64748b" marker-end="url(#tip)"/>'
    )


def _box(graph: Graph, layout: _Layout, node: Node) -> str:
    fill, line = _COLORS.get(node.kind, _COLORS["source"])
    x, y = layout.places[node.name]
    name, about = _labels(graph, node)
    dashes = ' stroke-dasharray="4 3"' if node.kind == "temporary view" else ""
    middle = x + layout.box_width // 2
    return (
        f"<g><title>{escape(f'{node.name}: {_about(graph, node)}')}</title>"
        f'<rect x="{x}" y="{y}" width="{layout.box_width}" height="{_HEIGHT}" rx="6" '
        f'fill="{fill}" stroke="{line}"{dashes}/>'
        f'<text x="{middle}" y="{y + 20}" text-anchor="middle" font-size="13" fill="#0f172a">'
        f"{escape(name)}</text>"
        f'<text x="{middle}" y="{y + 36}" text-anchor="middle" font-size="10" fill="#475569">'
        f"{escape(about)}</text></g>"
    )


def _about(graph: Graph, node: Node) -> str:
    """A node's kind, its output, and the flows into it that have other names than the node."""
    flows = [
        flow.name
        for flow in graph.flows.values()
        if flow.target == node.name and flow.name != node.name
    ]
    by = f"by {', '.join(flows)}" if flows else None
    words = [_WORDS.get(node.kind, node.kind), node.detail, by]
    return ", ".join(word for word in words if word)


def _short(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def text(graph: Graph) -> str:
    """A tree per source; a dataset that was shown before is only named."""
    after: dict[str, list[str]] = {name: [] for name in graph.nodes}
    reached = set()
    for read, target in edges(graph):
        after[read].append(target)
        if read != target:
            reached.add(target)
    shown: set[str] = set()
    lines: list[str] = []
    for name in [*(name for name in graph.nodes if name not in reached), *graph.nodes]:
        if name not in shown:
            lines += _branch(graph, after, name, shown, "", "")
    return "\n".join(lines)


def _branch(
    graph: Graph,
    after: dict[str, list[str]],
    name: str,
    shown: set[str],
    first: str,
    rest: str,
) -> Iterator[str]:
    if name in shown:
        yield f"{first}{name} (above)"
        return
    shown.add(name)
    node = graph.nodes[name]
    about = _about(graph, node)
    yield f"{first}{name}" + ("" if name.startswith(about) else f" ({about})")
    for number, child in enumerate(after[name], 1):
        last = number == len(after[name])
        yield from _branch(
            graph,
            after,
            child,
            shown,
            rest + ("└─ " if last else "├─ "),
            rest + ("   " if last else "│  "),
        )
