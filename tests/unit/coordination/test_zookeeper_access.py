"""The settings with which a broker reaches ZooKeeper, and the files that they name."""

import logging
import os
import ssl
from pathlib import Path

import pytest

from headrace.config.broker import BrokerConfig
from headrace.config.setting import ConfigError
from headrace.coordination import kazoo_client, layout
from headrace.coordination.access import access_of, create_digest, read_digest
from headrace.coordination.port import StoreUnavailable


def private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_the_credentials_are_read_from_a_private_file(tmp_path: Path) -> None:
    file = private(tmp_path / "digest", "mill:pass:word\n")
    access = access_of(
        BrokerConfig.load({"headrace.zookeeper.digest.file": file, "zookeeper.set.acl": "true"})
    )
    assert (access.digest, access.sets_acls, access.tls) == ("mill:pass:word", True, None)
    assert "pass" not in repr(access)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_other_users_can_access_is_rejected(tmp_path: Path, mode: int) -> None:
    file = private(tmp_path / "digest", "mill:password")
    os.chmod(file, mode)
    with pytest.raises(StoreUnavailable, match="chmod 600") as failure:
        read_digest(file)
    assert "password" not in str(failure.value)


@pytest.mark.parametrize("text", ["", "mill", "mill:", ":password", "mill:password\nother:line"])
def test_a_file_without_user_and_password_is_rejected(tmp_path: Path, text: str) -> None:
    file = private(tmp_path / "digest", text)
    with pytest.raises(StoreUnavailable, match="USER:PASSWORD") as failure:
        read_digest(file)
    assert "password" not in str(failure.value)


def test_acls_require_credentials() -> None:
    with pytest.raises(StoreUnavailable, match=r"headrace\.zookeeper\.digest\.file"):
        access_of(BrokerConfig.load({"zookeeper.set.acl": "true"}))


def test_created_credentials_are_private_and_are_kept(tmp_path: Path) -> None:
    file = str(tmp_path / "digest")
    create_digest(file, os.urandom)
    first = read_digest(file)
    create_digest(file, os.urandom)
    assert read_digest(file) == first
    assert os.stat(file).st_mode & 0o777 == 0o600


def test_tls_verifies_certificates_and_host_names_by_default() -> None:
    tls = access_of(BrokerConfig.load({"zookeeper.ssl.client.enable": "true"})).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert tls.minimum_version is ssl.TLSVersion.TLSv1_2


def test_only_the_check_of_the_host_name_can_be_disabled() -> None:
    name = "zookeeper.ssl.endpoint.identification.algorithm"
    tls = access_of(BrokerConfig.load({"zookeeper.ssl.client.enable": "true", name: ""})).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_the_version_of_tls_can_be_set() -> None:
    settings = {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.protocol": "TLSv1.3"}
    tls = access_of(BrokerConfig.load(settings)).tls
    assert tls is not None
    assert tls.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zookeeper.ssl.crl.enable", "true"),
        ("zookeeper.ssl.ocsp.enable", "true"),
        ("zookeeper.ssl.cipher.suites", "TLS_AES_128_GCM_SHA256"),
    ],
)
def test_a_tls_setting_without_effect_is_rejected(name: str, value: str) -> None:
    with pytest.raises(StoreUnavailable, match=name):
        access_of(BrokerConfig.load({"zookeeper.ssl.client.enable": "true", name: value}))


def test_a_store_that_is_not_pem_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.write_bytes(b"\xfe\xed\xfe\xed")
    for kind in ("keystore", "truststore"):
        name = f"zookeeper.ssl.{kind}.location"
        with pytest.raises(StoreUnavailable, match="PEM"):
            access_of(BrokerConfig.load({"zookeeper.ssl.client.enable": "true", name: str(file)}))
    with pytest.raises(ConfigError, match="PEM"):
        BrokerConfig.load({"zookeeper.ssl.truststore.type": "JKS"})


def test_nodes_with_secrets_are_sensitive_and_their_neighbours_are_not() -> None:
    secrets = (
        layout.CLUSTER_SECRET,
        layout.USER_CONFIGS,
        layout.user_config_path("alice"),
        layout.broker_config_path(None),
        "/delegation_token/tokens/one",
    )
    assert all(map(layout.is_sensitive, secrets))
    others = (
        "/",
        layout.CLUSTER_ID,
        layout.TOPICS,
        "/cluster/secrets",
        "/config/usersx",
        "/config",
    )
    assert not any(map(layout.is_sensitive, others))


def test_requests_and_responses_of_kazoo_are_never_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, kazoo_client.__name__)
    log = logging.getLogger(kazoo_client.__name__)
    log.debug("Sending request(xid=-4): Auth(auth_type=0, scheme='digest', auth='mill:planted')")
    log.debug("Received response(xid=1): (b'planted', ZnodeStat())")
    log.info("Connecting to 127.0.0.1")
    assert "planted" not in caplog.text
    assert "Connecting" in caplog.text
