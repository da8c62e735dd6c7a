"""Certificates for tests: a CA, a broker and clients, as PEM files."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headrace.security.certificates import Pair, create_ca, create_certificate

HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass
class Certificates:
    directory: Path
    ca: Pair

    @classmethod
    def create(cls, directory: Path) -> "Certificates":
        made = cls(directory, create_ca("test CA", datetime.now(UTC)))
        made.write("ca.pem", made.ca.certificate)
        made.add("broker", HOSTS)
        made.add("alice")
        return made

    def add(
        self, name: str, hosts: tuple[str, ...] = (), *, kind: str = "ec", ca: Pair | None = None
    ) -> str:
        """Write NAME.pem, NAME.key and NAME.crt; returns the path of the first."""
        now = datetime.now(UTC)
        pair = create_certificate(ca or self.ca, name, now, hosts, organisation="Mill", kind=kind)
        self.write(f"{name}.key", pair.key)
        self.write(f"{name}.crt", pair.certificate)
        return self.write(f"{name}.pem", pair.key + pair.certificate)

    def write(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def server(self) -> dict[str, str]:
        """The settings of a broker."""
        return {
            "ssl.keystore.location": self.path("broker.pem"),
            "ssl.truststore.location": self.path("ca.pem"),
        }
