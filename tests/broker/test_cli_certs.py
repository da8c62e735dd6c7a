"""`headrace certs`: files that it creates are used by a broker and a client."""

import json
import subprocess
import sys
from pathlib import Path

import headrace.client
from headrace.client import load_properties
from headrace.ensemble.zookeeper import free_port
from headrace.testing import RunningBroker


def certs(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headrace", "certs", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def settings_in(output: str) -> dict[str, str]:
    lines = [line.strip() for line in output.splitlines() if line.startswith("  ")]
    return dict(line.split("=", 1) for line in lines)


def test_created_certificates_authenticate_broker_and_client(tmp_path: Path) -> None:
    directory = ("--directory", str(tmp_path))
    assert certs("ca", *directory).returncode == 0
    broker = settings_in(certs("broker", "b1", *directory).stdout)
    client = settings_in(certs("client", "alice", "--rsa", *directory).stdout)
    assert (tmp_path / "ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "b1.pem").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "ca.pem").stat().st_mode & 0o777 == 0o644
    path = tmp_path / "client.properties"
    path.write_text("\n".join(f"{name}={text}" for name, text in client.items()))
    port = free_port()
    secured = {"listeners": f"SSL://localhost:{port}", "ssl.client.auth": "required", **broker}
    with (
        RunningBroker.start(settings=secured),
        headrace.client.connect(f"localhost:{port}", **load_properties(str(path))) as connected,
    ):
        assert len(connected.describe_cluster().brokers) == 1


def test_files_are_described_and_checked(tmp_path: Path) -> None:
    directory = ("--directory", str(tmp_path))
    other = ("--directory", str(tmp_path / "other"))
    certs("ca", *directory)
    certs("ca", *other)
    certs("broker", "b1", "--host", "b1.example", "--days", "400", *directory)
    file, ca = str(tmp_path / "b1.pem"), str(tmp_path / "ca.pem")
    (shown,) = json.loads(certs("show", file, "--json").stdout)
    assert (shown["subject"], shown["names"]) == ("CN=b1", ["DNS:b1.example"])
    assert shown["has_private_key"]
    assert "b1.example" in certs("show", file, ca).stdout
    good = certs("check", file, "--ca", ca, "--host", "b1.example")
    assert good.returncode == 0, good.stderr
    for arguments, message in [
        (("--ca", ca, "--host", "b2.example"), "does not name the host b2.example"),
        (("--ca", str(tmp_path / "other" / "ca.pem")), "the CA did not sign it"),
        ((), "its CA is not known"),
    ]:
        failed = certs("check", file, *arguments)
        assert failed.returncode == 1
        assert message in failed.stderr
    certs("broker", "b2", "--days", "5", *directory)
    assert "it expires in" in certs("check", str(tmp_path / "b2.pem"), "--ca", ca).stderr
    mixed = tmp_path / "mixed.pem"
    mixed.write_text(
        (tmp_path / "b2.key").read_text() + "".join(_certificates(tmp_path / "b1.pem"))
    )
    assert "key does not belong" in certs("check", str(mixed), "--ca", ca).stderr


def _certificates(path: Path) -> list[str]:
    from headrace.security.key_stores import read_pem

    return list(read_pem(path.read_text()).chain)


def test_existing_files_are_kept_and_mistakes_are_reported(tmp_path: Path) -> None:
    directory = ("--directory", str(tmp_path))
    missing = certs("broker", "b1", *directory)
    assert "headrace certs ca" in missing.stderr
    certs("ca", *directory)
    before = (tmp_path / "ca.pem").read_text()
    assert "exists" in certs("ca", *directory).stderr
    assert (tmp_path / "ca.pem").read_text() == before
    assert certs("client", "../x", *directory).returncode == 2
    assert "neither PEM nor" in certs("show", __file__).stderr
