"""The examples of docs/TESTING.md, by the file name in their first line."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "TESTING.md"
EXAMPLES = dict(
    re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
)
ECOSYSTEM = {
    "test_faust.py": "faust",
    "test_quix.py": "quixstreams",
    "test_faststream.py": "faststream",
}
"""Examples that `make test-ecosystem` runs, with the module that each needs."""
