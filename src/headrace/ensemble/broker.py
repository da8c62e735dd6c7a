"""Runs a broker as a child process, with its properties file and ready file.

Owns the files next to the data directory. It starts `headrace broker FILE`, as a user would, and
does not import the broker. Blocks.
"""

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.ensemble.child import Child
from headrace.ensemble.properties import properties_text, write_private


class BrokerProcess:
    """One broker. The paths of its files are that of its data directory plus .properties, .ready
    and .log."""

    address: str
    """The address for clients, once the broker is ready."""

    def __init__(
        self,
        node_id: int,
        directory: Path,
        properties: Mapping[str, str],
        *,
        appends: bool = False,
        module: Sequence[str] = ("headrace",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`properties` are those of the properties file, without id and directory.

        `module` is the Python module to run, with its first arguments. `environment` has variables
        that are added to those of this process.
        """
        self.node_id = node_id
        self.directory = directory
        self.properties = {
            "broker.id": str(node_id),
            "log.dirs": str(directory.absolute()),
            **properties,
        }
        self.address = ""
        self.internal_address = ""
        """The address for other brokers, once the broker is ready."""
        self.file = _beside(directory, "properties")
        self._ready = _beside(directory, "ready")
        self.process = Child(
            f"Broker {node_id}",
            self._command(module),
            _beside(directory, "log"),
            appends=appends,
            environment=environment,
        )

    def _command(self, module: Sequence[str]) -> list[str]:
        files = [str(self.file), "--ready-file", str(self._ready)]
        return [sys.executable, "-m", *module, "broker", *files]

    def run_module(self, module: Sequence[str]) -> None:
        """Use another module from the next start on."""
        self.process.command = self._command(module)

    def start(
        self, *, when_orphaned: signal.Signals = signal.SIGTERM, under: Sequence[str] = ()
    ) -> None:
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        write_private(self.file, properties_text(self.properties))
        self._ready.unlink(missing_ok=True)
        self.process.start(when_orphaned=when_orphaned, under=under)

    def wait_until_ready(self, seconds: float, check: Callable[[], None] | None = None) -> None:
        """Raises ChildFailed. `check` can raise to end the wait."""
        self.process.wait_until(self._ready.exists, seconds, check)
        ready = json.loads(self._ready.read_text(encoding="utf-8"))
        self.address = str(ready["address"])
        self.internal_address = str(ready["internal"])


def _beside(directory: Path, ending: str) -> Path:
    return directory.with_name(f"{directory.name}.{ending}")
