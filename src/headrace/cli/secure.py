"""`headrace up --secure`: TLS, logins and ACLs with one option.

Owns DATA/security: a certificate authority, the certificate of the brokers, and the properties of
the user `admin`. Existing files are kept, except a certificate that expires soon.
"""

import os
import secrets
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headrace.cli.failure import Failure
from headrace.config.properties import read_properties

DIRECTORY = "security"
PROTOCOL = "SASL_SSL"
ADMIN = "admin"
PORT = 9092
"""The default of headrace commands."""
ADMIN_FILE = "admin.properties"
LIBRDKAFKA_FILE = "admin-librdkafka.properties"
TOKEN_KEY_FILE = "token.key"
PASSWORD_BYTES = 18
TOKEN_KEY_BYTES = 32
RENEWED_DAYS = 30
"""A certificate that is valid for less time is replaced at the next start."""
_MECHANISM = "SCRAM-SHA-512"
_FIXED = ("authorizer.class.name", "super.users", "sasl.enabled.mechanisms", "zookeeper.set.acl")
"""Settings that --secure owns, besides those of listeners and TLS."""


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise Failure if a --set option would disable a part of the protection."""
    for name in settings:
        if name in _FIXED or name.startswith(("ssl.", "listener.", "listeners")):
            raise Failure(
                f"--set {name} conflicts with --secure, which sets it. Omit one of them, or use "
                "headrace broker with a properties file.",
                2,
            )


def check_not_secured(data: Path) -> None:
    """Raise Failure if the data was created with --secure, for a start without --secure."""
    directory = data / DIRECTORY
    # Unlike Path.exists, this is False without permission, which the start reports itself.
    if os.path.exists(directory / ADMIN_FILE):
        raise Failure(
            f"Data directory {data} is secured. Start it with --secure. To disable TLS, logins and "
            f"ACLs, remove {directory} first."
        )


def secure_settings(data: Path, *, is_cluster: bool) -> dict[str, str]:
    """Create the missing files; returns the settings of all brokers."""
    directory = (data / DIRECTORY).absolute()
    try:
        data.mkdir(parents=True, exist_ok=True)
        if not directory.exists():
            # ACLs do not protect records from other users of this machine who can read the files.
            data.chmod(0o700)
        directory.mkdir(mode=0o700, exist_ok=True)
        _create_certificates(directory)
        _create_admin(directory)
        token_key = _token_key(directory)
    except ImportError:
        from headrace.env.extras import install_command

        raise Failure(
            "--secure requires cryptography, which is not installed. Run: "
            f"{install_command('secure')}"
        ) from None
    except OSError as error:
        raise Failure(f"Cannot create {error.filename}: {error.strerror}.") from None
    return {
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.truststore.location": str(directory / "ca.pem"),
        "sasl.enabled.mechanisms": _MECHANISM,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN}",
        "delegation.token.secret.key": token_key,
        **({"zookeeper.set.acl": "true"} if is_cluster else {}),
    }


def _create_certificates(directory: Path) -> None:
    from headrace.security.certificates import Pair, create_ca, create_certificate, describe

    now = datetime.now(UTC)
    key, certificate = directory / "ca.key", directory / "ca.pem"
    if not certificate.exists():
        pair = create_ca("Headrace CA", now)
        _write(key, pair.key)
        _write(certificate, pair.certificate)
    broker = directory / "broker.pem"
    if broker.exists():
        text = broker.read_text(encoding="ascii")
        own = text[text.index("-----BEGIN CERTIFICATE") :]
        if describe(own).not_after - now > timedelta(days=RENEWED_DAYS):
            return
    ca = Pair(key.read_text(encoding="ascii"), certificate.read_text(encoding="ascii"))
    hosts = dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname()))
    made = create_certificate(ca, "broker", now, tuple(hosts))
    _write(broker, made.key + made.certificate)


def admin_password(data: Path) -> str:
    """The password that `secure_settings` chose. The user can have another one since."""
    text = (data / DIRECTORY / LIBRDKAFKA_FILE).read_text(encoding="ascii")
    return read_properties(text)["sasl.password"]


def _create_admin(directory: Path) -> None:
    """Choose the password of the first user."""
    file = directory / ADMIN_FILE
    if file.exists():
        return
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    lines = (
        f"security.protocol={PROTOCOL}",
        f"sasl.mechanism={_MECHANISM}",
        f'sasl.jaas.config={module} required username="{ADMIN}" password="{password}";',
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={directory / 'ca.pem'}",
    )
    plain = (
        *lines[:2],
        f"sasl.username={ADMIN}",
        f"sasl.password={password}",
        f"ssl.ca.location={directory / 'ca.pem'}",
    )
    _write(directory / LIBRDKAFKA_FILE, "\n".join((*plain, "")))
    _write(file, "\n".join((*lines, "")))


def _token_key(directory: Path) -> str:
    """The key from which brokers derive the passwords of delegation tokens."""
    file = directory / TOKEN_KEY_FILE
    if not file.exists():
        _write(file, secrets.token_urlsafe(TOKEN_KEY_BYTES))
    return file.read_text(encoding="ascii")


def _write(file: Path, text: str) -> None:
    """Write a file that only its owner can read. Other processes never see a partial file."""
    part = file.with_name(f".{file.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="ascii") as opened:
        opened.write(text)
    os.replace(part, file)


def secured_lines(data: Path, port: int, store: str, *, has_admin: bool) -> str:
    """The files of the user `admin` and the next commands, or how to create this user again.

    `port` is 0 if the system chooses the port. `store` is the option of `users bootstrap`.
    """
    directory = (data / DIRECTORY).absolute()
    if not has_admin:
        return "\n".join(
            (
                f"TLS, logins and ACLs are enabled, but the user {ADMIN} does not exist.",
                "To create this user again, stop the brokers, then run:",
                f"      headrace users bootstrap {ADMIN} {store}",
                f"with sasl.password of {directory / LIBRDKAFKA_FILE}.",
            )
        )
    config = f"--config {directory / ADMIN_FILE}"
    if port != PORT:
        config += f" --bootstrap-server 127.0.0.1:{port or 'PORT'}"
    return "\n".join(
        (
            f"TLS, logins and ACLs are enabled. Properties of the user {ADMIN}:",
            f"      {directory / ADMIN_FILE} (Java, headrace commands)",
            f"      {directory / LIBRDKAFKA_FILE} (librdkafka, confluent-kafka)",
            f"Next: headrace users create bob {config}",
            f"      headrace acls add --user bob --producer --topic orders {config}",
        )
    )
