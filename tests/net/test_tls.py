"""TLS contexts from stores: what is read, what is refused, and what refusals keep to themselves."""

import socket
import ssl
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from klamm.config.security import StoreSettings, TlsSettings, tls_settings
from klamm.errors import ConfigError
from klamm.local.certificates import CertificateAuthority
from klamm.net.tls import client_context, server_context

AUTHORITY = CertificateAuthority()
BROKER = AUTHORITY.issue("broker", ("127.0.0.1",))
PASSWORD = "planted-store-password"


def pem_store(text: str, path: Path, **more: str) -> StoreSettings:
    path.write_text(text)
    return StoreSettings("PEM", str(path), **more)


def encrypted_key() -> str:
    key = serialization.load_pem_private_key(BROKER.key.encode(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    ).decode()


def pkcs12_keystore(path: Path) -> StoreSettings:
    data = pkcs12.serialize_key_and_certificates(
        b"broker",
        serialization.load_pem_private_key(BROKER.key.encode(), None),
        x509.load_pem_x509_certificate(BROKER.certificate.encode()),
        [x509.load_pem_x509_certificate(AUTHORITY.certificate.encode())],
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    )
    path.write_bytes(data)
    return StoreSettings("PKCS12", str(path), PASSWORD)


def pkcs12_truststore(path: Path) -> StoreSettings:
    authority = x509.load_pem_x509_certificate(AUTHORITY.certificate.encode())
    data = pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(authority, b"ca")],
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    )
    path.write_bytes(data)
    return StoreSettings("PKCS12", str(path), PASSWORD)


TRUST = StoreSettings("PEM", certificates=AUTHORITY.certificate)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1") -> str:
    """The version of TLS that the two agree on."""
    left, right = socket.socketpair()
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            server.wrap_socket(left, server_side=True).close()
        except (OSError, ssl.SSLError) as error:
            failures.append(error)
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname=host) as connected:
            return str(connected.version())
    finally:
        right.close()
        thread.join(10)


@pytest.mark.rule("SEC-6")
@pytest.mark.parametrize("kind", ["file", "inline", "encrypted", "pkcs12", "pkcs12 as JKS"])
def test_every_kind_of_key_store_serves(tmp_path, kind):
    path = tmp_path / "store"
    keystore = {
        "file": lambda: pem_store(BROKER.keystore, path),
        "inline": lambda: StoreSettings("PEM", key=BROKER.key, certificates=BROKER.certificate),
        "encrypted": lambda: pem_store(
            encrypted_key() + BROKER.certificate, path, key_password=PASSWORD
        ),
        "pkcs12": lambda: pkcs12_keystore(path),
        # Java reads PKCS12 under its default type as well.
        "pkcs12 as JKS": lambda: StoreSettings(
            "JKS", pkcs12_keystore(path).location, password=PASSWORD
        ),
    }[kind]()
    server = server_context(TlsSettings(keystore, None))
    assert shake_hands(server, client_context(TlsSettings(None, TRUST))) == "TLSv1.3"


@pytest.mark.rule("SEC-6")
def test_a_trust_store_may_be_pkcs12(tmp_path):
    server = server_context(
        TlsSettings(StoreSettings("PEM", key=BROKER.key, certificates=BROKER.certificate), None)
    )
    trusted = pkcs12_truststore(tmp_path / "trust.p12")
    assert shake_hands(server, client_context(TlsSettings(None, trusted))) == "TLSv1.3"


@pytest.mark.rule("SEC-6")
def test_a_client_checks_authority_and_host_name():
    inline = StoreSettings("PEM", key=BROKER.key, certificates=BROKER.certificate)
    server = server_context(TlsSettings(inline, None))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client_context(TlsSettings(None, TRUST)), host="other.example")
    anyone = client_context(TlsSettings(None, TRUST, check_hostname=False))
    assert shake_hands(server, anyone, host="other.example") == "TLSv1.3"
    stranger = StoreSettings("PEM", certificates=CertificateAuthority("other").certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client_context(TlsSettings(None, stranger)))


@pytest.mark.rule("SEC-6")
@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        (AUTHORITY.issue("broker", ("127.0.0.1",), timedelta(days=-1)), "expired"),
        (AUTHORITY.issue("127.0.0.1"), "mismatch"),
        (CertificateAuthority("other").issue("broker", ("127.0.0.1",)), "local issuer"),
    ],
    ids=["expired", "without a host name", "signed by a stranger"],
)
def test_a_client_says_why_it_does_not_believe_a_broker(certificate, reason):
    inline = StoreSettings("PEM", key=certificate.key, certificates=certificate.certificate)
    server = server_context(TlsSettings(inline, None))
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        shake_hands(server, client_context(TlsSettings(None, TRUST)))


@pytest.mark.rule("SEC-6")
@pytest.mark.parametrize(
    ("given", "version"),
    [
        ({"ssl.enabled.protocols": "TLSv1.2"}, "TLSv1.2"),
        ({"ssl.protocol": "TLSv1.2"}, "TLSv1.2"),
        ({"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, "TLSv1.2"),
        ({}, "TLSv1.3"),
    ],
)
def test_versions_and_suites_are_limited_by_javas_names(given, version):
    inline = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": BROKER.key,
        "ssl.keystore.certificate.chain": BROKER.certificate,
    }
    server = server_context(tls_settings({**inline, **given}.get))
    assert shake_hands(server, client_context(TlsSettings(None, TRUST))) == version


@pytest.mark.parametrize(
    "given",
    [
        {"ssl.enabled.protocols": "TLSv1.1"},
        {"ssl.protocol": "SSLv3"},
        {"ssl.keystore.type": "BKS"},
        {"ssl.endpoint.identification.algorithm": "ldaps"},
        {"ssl.keystore.type": "PEM", "ssl.keystore.key": "x"},
        {"ssl.keystore.location": "a", "ssl.keystore.key": "x", "ssl.keystore.type": "PEM"},
        {"ssl.truststore.location": "a", "ssl.truststore.certificates": "x"},
    ],
)
def test_settings_that_make_no_sense_are_refused(given):
    with pytest.raises(ConfigError):
        tls_settings(given.get)


def refusal(keystore: StoreSettings | None, truststore: StoreSettings | None = None, **more) -> str:
    with pytest.raises(ConfigError) as refused:
        server_context(TlsSettings(keystore, truststore, **more))
    assert PASSWORD not in str(refused.value)
    assert "PRIVATE KEY" not in str(refused.value)
    return str(refused.value)


@pytest.mark.rule("SEC-6", "SEC-16")
def test_stores_that_cannot_be_used_are_refused_with_what_would_help(tmp_path):
    jks = tmp_path / "keys.jks"
    jks.write_bytes(bytes.fromhex("feedfeed00000002") + bytes(40))
    said = refusal(StoreSettings("JKS", str(jks), PASSWORD))
    assert f"keytool -importkeystore -srckeystore {jks}" in said
    assert "-deststoretype PKCS12" in said
    pem = pem_store(BROKER.keystore, tmp_path / "pem")
    assert "set ssl.keystore.type=PEM" in refusal(StoreSettings("JKS", pem.location))
    assert "cannot be read" in refusal(StoreSettings("PEM", str(tmp_path / "none")))
    wrong = StoreSettings("PKCS12", pkcs12_keystore(tmp_path / "p12").location, "wrong")
    assert "is not its password" in refusal(wrong)
    locked = pem_store(encrypted_key() + BROKER.certificate, tmp_path / "locked")
    assert "ssl.key.password" in refusal(locked)
    other = AUTHORITY.issue("other")
    mixed = StoreSettings("PEM", key=other.key, certificates=BROKER.certificate)
    assert "does not belong to the certificate" in refusal(mixed)
    assert "ssl.keystore" in refusal(None)


@pytest.mark.rule("SEC-6")
def test_a_client_certificate_needs_somebody_to_trust():
    inline = StoreSettings("PEM", key=BROKER.key, certificates=BROKER.certificate)
    assert "needs ssl.truststore" in refusal(inline, client_auth="required")
    assert "suites of TLS 1.3" in refusal(inline, cipher_suites=("TLS_AES_128_GCM_SHA256",))


@pytest.mark.rule("SEC-16")
def test_no_password_or_key_shows():
    shown = repr(TlsSettings(StoreSettings("PEM", key=BROKER.key, key_password=PASSWORD), None))
    assert PASSWORD not in shown
    assert "PRIVATE" not in shown
