"""`headrace certs`: a private CA, and certificates for brokers and clients."""

import argparse
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.connection import add_json_argument, sentence
from headrace.cli.failure import Failure
from headrace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from headrace.security.certificates import CertificateInfo, Pair

CA_NAME = "ca"
SOON_DAYS = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    ca = _add(actions, "ca", "create a certificate authority (CA)", _create_ca)
    ca.add_argument("--name", default="Headrace CA", help="name of the CA (default: Headrace CA)")
    broker = _add(actions, "broker", "create the key and certificate of a broker", _create_broker)
    broker.add_argument("name", metavar="NAME", help="name of the files, and of the subject")
    broker.add_argument(
        "--host",
        metavar="HOST",
        action="append",
        default=None,
        help="host name or address that clients connect to; can be repeated (default: localhost, "
        "127.0.0.1, ::1 and the name of this machine)",
    )
    client = _add(actions, "client", "create the key and certificate of a client", _create_client)
    client.add_argument("name", metavar="NAME", help="name of the files, and of the user")
    for each in (ca, broker, client):
        _add_creation(each, is_ca=each is ca)
    show = _add(actions, "show", "show the certificates of files", _show)
    show.add_argument("files", metavar="FILE", nargs="+", help="PEM, PKCS12 or JKS file")
    add_json_argument(show)
    check = _add(
        actions, "check", "check the key, chain, names and expiry of a broker's certificate", _check
    )
    check.add_argument("file", metavar="FILE", help="file with the key and its certificates")
    check.add_argument("--ca", metavar="FILE", help="file with the certificate of the CA")
    check.add_argument(
        "--host",
        metavar="HOST",
        action="append",
        default=[],
        help="host name or address for which the certificate must be valid; can be repeated",
    )


def _add(actions: Any, name: str, summary: str, run: object) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=sentence(summary)
    )
    parser.set_defaults(run_action=run)
    if name in ("show", "check"):
        parser.add_argument(
            "--password-env",
            metavar="VARIABLE",
            help="environment variable with the password of the file",
        )
    return parser


def _add_creation(parser: argparse.ArgumentParser, *, is_ca: bool) -> None:
    parser.add_argument(
        "--directory", metavar="DIR", default=".", help="directory of the files (default: .)"
    )
    days = 3650 if is_ca else 365
    parser.add_argument(
        "--days", type=int, default=days, help=f"validity in days (default: {days})"
    )
    parser.add_argument("--rsa", action="store_true", help="RSA 2048 instead of ECDSA P-256")


def run(args: argparse.Namespace) -> int:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        from headrace.env.extras import install_command

        raise Failure(
            "headrace certs requires cryptography, which is not installed. Run: "
            f"{install_command('secure')}"
        ) from None
    code: int = args.run_action(args)
    return code


def _create_ca(args: argparse.Namespace) -> int:
    from headrace.security.certificates import create_ca

    directory = Path(args.directory)
    pair = create_ca(args.name, datetime.now(UTC), days=args.days, kind=_kind(args))
    _write(directory, CA_NAME, pair, "")
    print(f"Created {directory / 'ca.pem'} and {directory / 'ca.key'}. Keep ca.key secret.")
    print(f"Next: headrace certs broker broker1 --directory {directory}")
    return 0


def _create_broker(args: argparse.Namespace) -> int:
    hosts = args.host or ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    path = _create(args, tuple(dict.fromkeys(hosts)))
    print(f"Created {path}, valid for {', '.join(dict.fromkeys(hosts))}. Settings of the broker:")
    print(f"  ssl.keystore.location={path.resolve()}")
    print(f"  ssl.truststore.location={(path.parent / 'ca.pem').resolve()}")
    return 0


def _create_client(args: argparse.Namespace) -> int:
    path = _create(args, ())
    print(f"Created {path}. Properties of the client:")
    print("  security.protocol=SSL")
    print(f"  ssl.keystore.location={path.resolve()}")
    print("  ssl.keystore.type=PEM")
    print(f"  ssl.truststore.location={(path.parent / 'ca.pem').resolve()}")
    print("  ssl.truststore.type=PEM")
    return 0


def _create(args: argparse.Namespace, hosts: tuple[str, ...]) -> Path:
    from headrace.security.certificates import Pair, create_certificate

    directory = Path(args.directory)
    if args.name == CA_NAME or "/" in args.name:
        raise Failure(f"{args.name!r} cannot be the name of a certificate. Choose another one.", 2)
    try:
        ca = Pair((directory / "ca.key").read_text(), (directory / "ca.pem").read_text())
    except FileNotFoundError as error:
        raise Failure(
            f"{error.filename} does not exist. Create a CA: headrace certs ca --directory "
            f"{directory}"
        ) from None
    pair = create_certificate(
        ca, args.name, datetime.now(UTC), hosts, days=args.days, kind=_kind(args)
    )
    _write(directory, args.name, pair, pair.key)
    return directory / f"{args.name}.pem"


def _kind(args: argparse.Namespace) -> str:
    return "rsa" if args.rsa else "ec"


def _write(directory: Path, name: str, pair: "Pair", key: str) -> None:
    """NAME.key, and NAME.pem with `key` and the certificate. Existing files are kept."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = {f"{name}.key": pair.key, f"{name}.pem": key + pair.certificate}
    for each in files:
        if (directory / each).exists():
            raise Failure(
                f"{directory / each} exists. Choose another directory with "
                "--directory, or delete the file."
            )
    for each, text in files.items():
        mode = 0o600 if "PRIVATE KEY" in text else 0o644
        descriptor = os.open(directory / each, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "w") as file:
            file.write(text)


def _show(args: argparse.Namespace) -> int:
    from headrace.security.certificates import describe

    rows = []
    for path in args.files:
        key, chain = _store(path, args)
        rows += [(path, describe(each), bool(key) and not at) for at, each in enumerate(chain)]
    if args.json:
        print_json(
            [
                {
                    "file": path,
                    "subject": each.subject,
                    "issuer": each.issuer,
                    "names": list(each.names),
                    "not_before": each.not_before.isoformat(),
                    "not_after": each.not_after.isoformat(),
                    "is_ca": each.is_ca,
                    "serial": each.serial,
                    "key": each.key,
                    "has_private_key": has_key,
                }
                for path, each, has_key in rows
            ]
        )
        return 0
    print_table(
        ("file", "subject", "names", "expires", "key", "private key"),
        [
            (
                path,
                each.subject,
                ", ".join(each.names) or ("CA" if each.is_ca else "-"),
                each.not_after.date().isoformat(),
                each.key,
                "yes" if has_key else "no",
            )
            for path, each, has_key in rows
        ],
    )
    return 0


def _store(path: str, args: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    """The key and the certificates of a file."""
    from headrace.security.key_stores import InvalidStore, read_store

    password = os.environ.get(args.password_env) if args.password_env else None
    try:
        store = read_store(Path(path).read_bytes(), password)
    except OSError as error:
        raise Failure(f"Cannot read {path}: {error.strerror}.") from None
    except InvalidStore as error:
        raise Failure(f"{path}: {error}.") from None
    return store.key, store.chain or store.trusted


def _check(args: argparse.Namespace) -> int:
    from headrace.security.certificates import describe, is_issued_by

    key, chain = _store(args.file, args)
    if not chain:
        raise Failure(f"{args.file} contains no certificate.")
    own = describe(chain[0])
    problems = _key_problems(key, chain)
    problems += _time_problems(own)
    issuers = list(chain[1:])
    if args.ca:
        issuers += _store(args.ca, args)[1]
    if not any(is_issued_by(chain[0], issuer) for issuer in issuers):
        problems.append(
            f"the CA did not sign it; its issuer is {own.issuer}"
            if issuers
            else "its CA is not known. Use --ca"
        )
    named = {each.partition(":")[2] for each in own.names}
    problems += [f"it does not name the host {host}" for host in args.host if host not in named]
    if problems:
        raise Failure(f"{args.file}: {'; '.join(problems)}.")
    print(f"{args.file}: {own.subject} is valid until {own.not_after.date()}")
    return 0


def _key_problems(key: str, chain: tuple[str, ...]) -> list[str]:
    import ssl

    from headrace.env.key_memory import load_key

    if not key:
        return ["it contains no private key"]
    try:
        load_key(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), key + "".join(chain), "")
    except ssl.SSLError:
        return ["the key does not belong to the certificate, or has a password"]
    return []


def _time_problems(own: "CertificateInfo") -> list[str]:
    now = datetime.now(UTC)
    if now < own.not_before:
        return [f"it is not valid before {own.not_before.isoformat()}"]
    days = (own.not_after - now).days
    if now > own.not_after:
        return [f"it expired on {own.not_after.date()}"]
    return [f"it expires in {days} days"] if days < SOON_DAYS else []
