"""A Maven mirror on loopback that serves the jars of the installed PySpark."""

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from headrace.ensemble.zookeeper_jars import JARS


class Mirror(ThreadingHTTPServer):
    """`files` maps paths to contents; `requests` has the paths in the order of the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.submodule_search_locations
        jars = Path(spec.submodule_search_locations[0], "jars")
        self.files = {f"/{jar.path}": (jars / jar.file).read_bytes() for jar in JARS}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        mirror = self.server
        assert isinstance(mirror, Mirror)
        mirror.requests.append(self.path)
        content = mirror.files.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def mirror() -> Iterator[Mirror]:
    with Mirror() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
