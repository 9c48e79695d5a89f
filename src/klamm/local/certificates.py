"""Certificates for a cluster on this machine: an authority and what it signs.

They are for laptops and tests: the authority's key lies beside what it signed.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE: Final = datetime.timedelta(days=365)
_CLOCKS_DIFFER: Final = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its private key, both as PEM."""

    certificate: str
    key: str = field(repr=False)

    @property
    def keystore(self) -> str:
        """Key and certificate in one text, as Kafka's PEM key stores have it."""
        return self.key + self.certificate


class CertificateAuthority:
    """Signs certificates that a trust store with `certificate` believes."""

    def __init__(self, name: str = "klamm local authority") -> None:
        self._key: ec.EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key(), _LIFE)
        self._certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @classmethod
    def load(cls, path: Path) -> CertificateAuthority:
        """The authority whose key and certificate `keystore` was written to `path`."""
        data = path.read_bytes()
        key = serialization.load_pem_private_key(data, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        loaded = cls.__new__(cls)
        loaded._key = key
        loaded._certificate = x509.load_pem_x509_certificate(data)
        loaded._name = loaded._certificate.subject
        return loaded

    @property
    def keystore(self) -> str:
        """Key and certificate in one text."""
        return _key_pem(self._key) + self.certificate

    @property
    def certificate(self) -> str:
        """The authority's own certificate as PEM: what goes into trust stores."""
        return _pem(self._certificate)

    def issue(
        self,
        name: str | x509.Name,
        hosts: tuple[str, ...] = (),
        life: datetime.timedelta = _LIFE,
    ) -> Certificate:
        """Sign a certificate for a host or a user; names of hosts are what clients check."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = (
            name
            if isinstance(name, x509.Name)
            else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        )
        builder = _builder(subject, self._name, key.public_key(), life)
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
        )
        if hosts:
            names = [_general_name(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Certificate(_pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    begin = min(now, now + life) - _CLOCKS_DIFFER
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + life)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
