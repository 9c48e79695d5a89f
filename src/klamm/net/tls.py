"""TLS contexts from Kafka's settings: PEM as files or text, and PKCS12.

OpenSSL does the work, through the standard library. `cryptography` is imported only to take a
PKCS12 store or an encrypted key apart. JKS is a format of Java's own and is refused with the
command that converts it. Error messages name the key and the file, never a password or a key.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from klamm.config.security import StoreSettings, TlsSettings
from klamm.errors import ConfigError

_JKS_MAGIC: Final = bytes.fromhex("feedfeed")
_PEM_MARK: Final = b"-----BEGIN "
_CERTIFICATE: Final = re.compile(
    r"-----BEGIN (?:X509 )?CERTIFICATE-----.*?-----END (?:X509 )?CERTIFICATE-----", re.DOTALL
)
_KEY: Final = re.compile(
    r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----.*?-----END (?:[A-Z]+ )*PRIVATE KEY-----", re.DOTALL
)
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
#: The suites of TLS 1.3, which have the same names in Java and in OpenSSL.
_SUITES_OF_TLS_1_3: Final = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)
_JAVA_SUITE: Final = re.compile(
    r"TLS_(?P<exchange>ECDHE|DHE)_(?P<auth>RSA|ECDSA)_WITH_(?P<cipher>AES_128|AES_256)"
    r"_(?P<mode>GCM|CBC)_(?P<hash>SHA|SHA256|SHA384)"
    r"|TLS_RSA_WITH_(?P<plain_cipher>AES_128|AES_256)_(?P<plain_mode>GCM|CBC)"
    r"_(?P<plain_hash>SHA|SHA256|SHA384)"
    r"|TLS_(?P<chacha_exchange>ECDHE|DHE)_(?P<chacha_auth>RSA|ECDSA)"
    r"_WITH_CHACHA20_POLY1305_SHA256"
)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate chain, as PEM text; the key stays out of `repr`."""

    key: str = field(repr=False)
    chain: str
    key_password: str | None = field(default=None, repr=False)


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a listener."""
    if settings.keystore is None:
        raise ConfigError("ssl.keystore.location or ssl.keystore.key has to be set for TLS")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _limit(context, settings)
    _load_key_pair(context, settings.keystore)
    context.verify_mode = _VERIFY[settings.client_auth]
    if settings.truststore is not None:
        _load_trusted(context, settings.truststore)
    elif context.verify_mode is not ssl.CERT_NONE:
        raise ConfigError(
            f"ssl.client.auth={settings.client_auth} needs ssl.truststore.location or"
            " ssl.truststore.certificates: without it nobody's certificate could be trusted"
        )
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a client; without a trust store, the system's authorities are trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit(context, settings)
    context.check_hostname = settings.check_hostname
    if settings.truststore is None:
        context.load_default_certs()
    else:
        _load_trusted(context, settings.truststore)
    if settings.keystore is not None:
        _load_key_pair(context, settings.keystore)
    return context


def _limit(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Set versions and cipher suites."""
    versions = set(settings.versions)
    suites = settings.cipher_suites
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if suites:
        modern = _SUITES_OF_TLS_1_3.intersection(suites)
        if not modern:
            versions.discard("TLSv1.3")
        elif "TLSv1.3" in versions and modern != _SUITES_OF_TLS_1_3:
            raise ConfigError(
                "ssl.cipher.suites names some suites of TLS 1.3: klamm cannot switch off the"
                f" others. Name all of {', '.join(sorted(_SUITES_OF_TLS_1_3))}, or set"
                " ssl.enabled.protocols=TLSv1.2"
            )
        older = [_openssl_name(suite) for suite in suites if suite not in _SUITES_OF_TLS_1_3]
        if older:
            context.set_ciphers(":".join(older))
        else:
            versions.discard("TLSv1.2")
    if not versions:
        raise ConfigError("ssl.cipher.suites and ssl.enabled.protocols leave no version of TLS")
    bounds = sorted(_VERSIONS[version] for version in versions)
    context.minimum_version, context.maximum_version = bounds[0], bounds[-1]


def _openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite that Java calls `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`."""
    match = _JAVA_SUITE.fullmatch(suite)
    if match is None:
        raise ConfigError(
            f"Invalid value {suite} for configuration ssl.cipher.suites: it is not a suite that"
            " klamm knows by Java's name"
        )
    if match["chacha_exchange"]:
        return f"{match['chacha_exchange']}-{match['chacha_auth']}-CHACHA20-POLY1305"
    prefix = f"{match['exchange']}-{match['auth']}-" if match["exchange"] else ""
    cipher = (match["cipher"] or match["plain_cipher"]).replace("_", "")
    mode = "-GCM" if (match["mode"] or match["plain_mode"]) == "GCM" else ""
    return f"{prefix}{cipher}{mode}-{match['hash'] or match['plain_hash']}"


def _load_key_pair(context: ssl.SSLContext, store: StoreSettings) -> None:
    pair = read_key_pair(store)
    # OpenSSL reads keys from files only. These exist for as long as the call, for us alone.
    with tempfile.TemporaryDirectory(prefix="klamm-tls-") as folder:
        chain, key = Path(folder, "chain.pem"), Path(folder, "key.pem")
        chain.write_text(pair.chain)
        descriptor = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(pair.key)
        try:
            # An empty password keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(chain, key, pair.key_password or "")
        except (ssl.SSLError, OSError, ValueError):
            raise ConfigError(
                f"{_shown(store, 'ssl.keystore')}: the key cannot be decrypted with"
                " ssl.key.password, or does not belong to the certificate"
            ) from None


def _load_trusted(context: ssl.SSLContext, store: StoreSettings) -> None:
    try:
        context.load_verify_locations(cadata=read_trusted(store))
    except ssl.SSLError:
        raise ConfigError(
            f"{_shown(store, 'ssl.truststore')}: a certificate cannot be read"
        ) from None
    # As in Java, every certificate of the store is trusted, be it a root or not.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """The subject of a certificate."""

    subject: str
    names: frozenset[str]


def read_names(store: StoreSettings) -> CertificateNames:
    """Subject and alternative names of the first certificate of a key store."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(read_key_pair(store).chain.encode())
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = frozenset(str(each.value) for each in found.value)
    except x509.ExtensionNotFound:
        names = frozenset()
    return CertificateNames(certificate.subject.rfc4514_string(), names)


def read_key_pair(store: StoreSettings) -> KeyPair:
    """Private key and chain of a key store, as PEM."""
    shown = _shown(store, "ssl.keystore")
    if store.location is None:
        key_text, chain_text = store.key or "", store.certificates or ""
    else:
        data = _read(store, "ssl.keystore")
        if store.type != "PEM":
            return _pkcs12_key_pair(data, store)
        key_text = chain_text = data.decode("utf-8", "replace")
    keys, certificates = _KEY.findall(key_text), _CERTIFICATE.findall(chain_text)
    if len(keys) != 1 or not certificates:
        raise ConfigError(f"{shown}: PEM needs one private key and at least one certificate")
    return KeyPair(keys[0] + "\n", "\n".join(certificates) + "\n", store.key_password)


def read_trusted(store: StoreSettings) -> str:
    """The certificates of a trust store, as PEM."""
    shown = _shown(store, "ssl.truststore")
    if store.location is None:
        text = store.certificates or ""
    else:
        data = _read(store, "ssl.truststore")
        if store.type != "PEM":
            return _pkcs12_certificates(data, store)
        text = data.decode("utf-8", "replace")
    certificates = _CERTIFICATE.findall(text)
    if not certificates:
        raise ConfigError(f"{shown}: there is no certificate in it")
    return "\n".join(certificates) + "\n"


def _read(store: StoreSettings, key: str) -> bytes:
    """The file of a store, checked to be of the type that was announced."""
    assert store.location is not None
    try:
        data = Path(store.location).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{key}.location: {store.location} cannot be read: {error.strerror}"
        ) from error
    if data.startswith(_JKS_MAGIC):
        target = Path(store.location).with_suffix(".p12")
        raise ConfigError(
            f"{key}.location: {store.location} is a JKS store, which only Java reads. Convert it:"
            f" keytool -importkeystore -srckeystore {store.location} -srcstoretype JKS"
            f" -destkeystore {target} -deststoretype PKCS12; then set {key}.type=PKCS12"
        )
    if store.type != "PEM" and _PEM_MARK in data[:4096]:
        raise ConfigError(f"{key}.location: {store.location} is PEM text: set {key}.type=PEM")
    return data


def _pkcs12_key_pair(data: bytes, store: StoreSettings) -> KeyPair:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        pkcs12,
    )

    try:
        key, certificate, others = pkcs12.load_key_and_certificates(data, _password(store))
    except (ValueError, TypeError):
        raise _unreadable(store, "ssl.keystore") from None
    if key is None or certificate is None:
        raise ConfigError(f"{_shown(store, 'ssl.keystore')}: it holds no private key")
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    chain = "".join(each.public_bytes(Encoding.PEM).decode() for each in (certificate, *others))
    return KeyPair(text, chain)


def _pkcs12_certificates(data: bytes, store: StoreSettings) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    try:
        loaded = pkcs12.load_pkcs12(data, _password(store))
    except (ValueError, TypeError):
        raise _unreadable(store, "ssl.truststore") from None
    certificates = [each.certificate for each in loaded.additional_certs]
    if loaded.cert is not None:
        certificates.append(loaded.cert.certificate)
    if not certificates:
        raise ConfigError(f"{_shown(store, 'ssl.truststore')}: there is no certificate in it")
    return "".join(each.public_bytes(Encoding.PEM).decode() for each in certificates)


def _password(store: StoreSettings) -> bytes | None:
    return None if store.password is None else store.password.encode()


def _unreadable(store: StoreSettings, key: str) -> ConfigError:
    return ConfigError(
        f"{key}.location: {store.location} is not PKCS12, or {key}.password is not its password"
    )


def _shown(store: StoreSettings, key: str) -> str:
    return key if store.location is None else f"{key}.location: {store.location}"
