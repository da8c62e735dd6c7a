"""Runs a broker with TLS, SASL/SCRAM-SHA-512 and ACLs for tests, and adds users to it.

The broker is a `headrace up --secure`. It needs the package cryptography, of the extra `secure`.
"""

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from headrace.model.acls import (
    CONSUMER_OPERATIONS,
    PRODUCER_OPERATIONS,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.testing.broker import RunningBroker

PROTOCOL = "SASL_SSL"
MECHANISM = "SCRAM-SHA-512"
ADMIN = "admin"


@dataclass(frozen=True)
class Login:
    """A user of a secure broker, with complete settings for each client."""

    address: str
    """The bootstrap server."""
    name: str
    password: str = field(repr=False)
    ca_file: Path
    """The certificate of the authority that signed the broker's certificate, as PEM."""

    @property
    def confluent_kafka(self) -> dict[str, str]:
        """For `Producer`, `Consumer` and `AdminClient` of confluent-kafka."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM,
            "sasl.username": self.name,
            "sasl.password": self.password,
            "ssl.ca.location": str(self.ca_file),
        }

    @property
    def kafka_python(self) -> dict[str, Any]:
        """Arguments of `KafkaProducer`, `KafkaConsumer` and `KafkaAdminClient`."""
        return {**self._names_of_python, "ssl_cafile": str(self.ca_file)}

    @property
    def aiokafka(self) -> dict[str, Any]:
        """Arguments of `AIOKafkaProducer`, `AIOKafkaConsumer` and `AIOKafkaAdminClient`."""
        return {**self._names_of_python, "ssl_context": self.ssl_context()}

    @property
    def headrace(self) -> dict[str, Any]:
        """Arguments of `connect`, blocking or asyncio."""
        return {
            "bootstrap": self.address,
            "sasl_username": self.name,
            "sasl_password": self.password,
            "sasl_mechanism": MECHANISM,
            "ssl": self.ssl_context(),
        }

    def ssl_context(self) -> ssl.SSLContext:
        """A context that trusts the broker's certificate only."""
        return ssl.create_default_context(cafile=self.ca_file)

    @property
    def _names_of_python(self) -> dict[str, str]:
        return {
            "bootstrap_servers": self.address,
            "security_protocol": PROTOCOL,
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": self.name,
            "sasl_plain_password": self.password,
        }


class SecureBroker(RunningBroker):
    """One `headrace up --secure`. Use `SecureBroker.start()`, preferably in a `with` statement."""

    @classmethod
    def start(
        cls,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        timeout_s: float = 40.0,
    ) -> Self:
        """As `RunningBroker.start`, with `--secure`."""
        return super().start(
            data_dir,
            port=port,
            settings=settings,
            options=("--secure", *options),
            timeout_s=timeout_s,
        )

    @property
    def admin(self) -> Login:
        """The super user, which may do everything."""
        from headrace.client.core.properties import load_properties

        file = self.data_dir / "security" / "admin.properties"
        return self._login(ADMIN, load_properties(str(file))["sasl_password"])

    def add_user(
        self,
        name: str,
        password: str = "secret",
        *,
        write: Sequence[str] = (),
        read: Sequence[str] = (),
        groups: Sequence[str] = (),
        acls: Sequence[Acl] = (),
    ) -> Login:
        """Create a user, or replace the password of an existing user, and create ACLs.

        The user may create and write the topics `write`, and read the topics `read` as a member of
        `groups`. The name "*" stands for all. `acls` are further ACLs, also of other users.
        """
        from headrace.client import connect

        granted: list[tuple[ResourceType, str, tuple[Operation, ...]]] = []
        granted += [(ResourceType.TOPIC, each, PRODUCER_OPERATIONS) for each in write]
        granted += [(ResourceType.TOPIC, each, CONSUMER_OPERATIONS) for each in read]
        granted += [(ResourceType.GROUP, each, (Operation.READ,)) for each in groups]
        rules = [
            Acl(
                type_,
                PatternType.LITERAL,
                resource,
                f"User:{name}",
                WILDCARD,
                operation,
                Permission.ALLOW,
            )
            for type_, resource, operations in granted
            for operation in operations
        ]
        rules += acls
        with connect(**self.admin.headrace) as client:
            client.set_password(name, password)
            if rules:
                client.create_acls(list(dict.fromkeys(rules)))
        return self._login(name, password)

    def _login(self, name: str, password: str) -> Login:
        return Login(self.address, name, password, self.data_dir / "security" / "ca.pem")
