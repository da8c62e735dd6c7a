"""A pipeline as a picture: SVG for a page, a tree of text for the terminal. Pure."""

from collections.abc import Iterator
from html import escape

from headrace.pipelines.graph import Graph, Node

_WIDTH, _HEIGHT = 190, 46
_GAP_X, _GAP_Y = 70, 22
_MARGIN = 20
_LETTERS_MAX = 24
# Light boxes and dark letters, on white: readable wherever the picture is put.
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
    """From what is read to what is written, each pair once."""
    pairs = [(read, flow.target) for flow in graph.flows.values() for read in flow.reads]
    return list(dict.fromkeys(pair for pair in pairs if set(pair) <= graph.nodes.keys()))


def columns(graph: Graph) -> list[list[str]]:
    """Nodes from left to right: each to the right of all that it reads, and near to it."""
    before: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for read, target in edges(graph):
        before[target].append(read)
    depth = dict.fromkeys(graph.nodes, 0)
    # A table may read itself, through a loop of names that Spark refuses: no deeper than there are.
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


def svg(graph: Graph) -> str:
    placed = columns(graph)
    tallest = max(map(len, placed), default=0)
    places = {
        name: (
            _MARGIN + across * (_WIDTH + _GAP_X),
            _MARGIN + (tallest - len(column)) * (_HEIGHT + _GAP_Y) // 2 + down * (_HEIGHT + _GAP_Y),
        )
        for across, column in enumerate(placed)
        for down, name in enumerate(column)
    }
    width = 2 * _MARGIN + len(placed) * (_WIDTH + _GAP_X) - _GAP_X
    height = 2 * _MARGIN + tallest * (_HEIGHT + _GAP_Y) - _GAP_Y
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif">',
        f"<title>{escape(graph.pipeline)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="#64748b"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(_arrow(places[read], places[target]) for read, target in edges(graph)),
        *(_box(node, _about(graph, node), places[name]) for name, node in graph.nodes.items()),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + _WIDTH, start[1] + _HEIGHT // 2
    x2, y2 = end[0], end[1] + _HEIGHT // 2
    bend = max((x2 - x1) // 2, _GAP_X // 2)
    return (
        f'<path d="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}" fill="none" '
        'stroke="#64748b" marker-end="url(#tip)"/>'
    )


def _box(node: Node, about: str, place: tuple[int, int]) -> str:
    fill, line = _COLORS.get(node.kind, _COLORS["source"])
    x, y = place
    dashes = ' stroke-dasharray="4 3"' if node.kind == "temporary view" else ""
    middle = x + _WIDTH // 2
    return (
        f"<g><title>{escape(f'{node.name}: {about}')}</title>"
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{fill}" '
        f'stroke="{line}"{dashes}/>'
        f'<text x="{middle}" y="{y + 20}" text-anchor="middle" font-size="13" fill="#0f172a">'
        f"{escape(_short(node.name, _LETTERS_MAX))}</text>"
        f'<text x="{middle}" y="{y + 36}" text-anchor="middle" font-size="10" fill="#475569">'
        f"{escape(_short(about, _LETTERS_MAX + 8))}</text></g>"
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
    """Each source and what comes of it, as a tree; what has been shown is named again in brief."""
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
