"""The subject of a certificate as Java writes it. The expected texts are Java's."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.security.distinguished_name import InvalidCertificate, subject_of

Attributes = list[tuple[x509.ObjectIdentifier, str]]


def certificate(groups: list[Attributes]) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.RelativeDistinguishedName(
                [x509.NameAttribute(kind, value, _validate=False) for kind, value in group]
            )
            for group in groups
        ]
    )
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


CN, ORG, C = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.COUNTRY_NAME


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([[(C, "DE")], [(ORG, "Mill")], [(CN, "alice")]], "CN=alice,O=Mill,C=DE"),
        (
            [[(ORG, "Mill")], [(CN, "alice")], [(NameOID.EMAIL_ADDRESS, "a@b.c")]],
            "1.2.840.113549.1.9.1=#16056140622e63,CN=alice,O=Mill",
        ),
        ([[(CN, "alice,O=admin")]], r"CN=alice\,O\=admin"),
        (
            [[(ORG, 'Mill, Inc. + "Q" <x>;=\\')], [(CN, " #alice ")]],
            r"CN=\ \#alice\ ,O=Mill\, Inc. \+ \"Q\" \<x\>\;\=\\",
        ),
        ([[(CN, "alice"), (NameOID.USER_ID, "u1")]], "CN=alice+UID=u1"),
        (
            [[(NameOID.TITLE, "Dr")], [(NameOID.STREET_ADDRESS, "Road 1")]],
            "STREET=Road 1,2.5.4.12=#0c024472",
        ),
        ([[(CN, "Jörg")]], "CN=Jörg"),
        ([[(CN, "  ")]], r"CN=\ \ "),
        ([], ""),
    ],
)
def test_subject_is_written_as_java_does(groups: list[Attributes], expected: str) -> None:
    assert subject_of(certificate(groups)) == expected


def test_control_characters_are_rejected() -> None:
    with pytest.raises(InvalidCertificate, match="control characters"):
        subject_of(certificate([[(CN, "alice\nUser:admin")]]))


def test_truncated_certificate_is_rejected() -> None:
    whole = certificate([[(CN, "alice")]])
    for end in range(150):
        with pytest.raises(InvalidCertificate):
            subject_of(whole[:end])
