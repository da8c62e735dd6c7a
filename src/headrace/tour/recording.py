"""Writes a recording of the tour as one SVG file, which shows the frames one by one with CSS.

rich draws each frame. Without animation, the frame with the highest rate is visible.
"""

import io
import re
from pathlib import Path

from rich.console import Console, RenderableType

WIDTH = 120
FRAME_S = 4.0
_FRAME = "{width} {height}|<style>{styles}</style>{backgrounds}{matrix}"
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_STYLE = """
text {{ font-size: 20px; font-family: {font} }}
.frame {{ visibility: hidden; animation: step {seconds:g}s step-end infinite }}
.still {{ visibility: visible; animation: none }}
@keyframes step {{ 0% {{ visibility: visible }} {part:.4f}% {{ visibility: hidden }} }}
"""


class Recording:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._frames: list[str] = []
        self._still: tuple[float, str] | None = None
        """The frame with the highest rate, and this rate."""
        self._width = self._height = 0.0

    def add(self, drawn: RenderableType, rate: float) -> None:
        """Add a frame, drawn while records were acknowledged at this rate."""
        console = Console(
            record=True,
            width=WIDTH,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
        )
        console.print(drawn)
        text = console.export_svg(code_format=_FRAME, unique_id=f"f{len(self._frames)}")
        size, _, body = text.partition("|")
        width, height = map(float, size.split())
        self._width, self._height = max(self._width, width), max(self._height, height)
        # Drop the clips at line ends, and shorten spaces, which take six characters.
        body = re.sub(r' clip-path="[^"]*"', "", body).replace("&#160;", "\u00a0")
        self._frames.append(body)
        if self._still is None or rate > self._still[0]:
            self._still = rate, body

    def write(self) -> None:
        self._path.write_text(self._svg(), encoding="utf-8")

    def _svg(self) -> str:
        count = len(self._frames)
        shown = [] if self._still is None else [(self._still[1], "still", 0.0)]
        shown += [(body, "frame", at * FRAME_S) for at, body in enumerate(self._frames)]
        back = '<rect width="100%" height="100%" rx="8" fill="#292929"/>'
        groups = "\n".join(
            f'<g class="{kind}" style="animation-delay: {delay:g}s">{back}'
            f'<g transform="translate(8, 4)">{body}</g></g>'
            for body, kind, delay in shown
        )
        style = _STYLE.format(font=_FONT, seconds=count * FRAME_S, part=100 / max(count, 1))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width:g} '
            f'{self._height - 36:g}">\n<style>{style}</style>\n{groups}\n</svg>\n'
        )
