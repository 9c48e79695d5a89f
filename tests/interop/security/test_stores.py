"""Stores, passwords and described settings are treated alike by a broker of either kind."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)

from klamm.protocol.apis import ApiKey as K
from tests.interop.security.dialogue import (
    PASSWORDS,
    PATIENCE_S,
    Both,
    SecuredSolo,
    agree,
    alter_broker,
)
from tests.support.mixed_cluster import Kind
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


# Stores


KEYSTORE = "listener.name.sasl_ssl.ssl.keystore"
HOSTS = ("127.0.0.1", "localhost")


def _serial(cluster: SecuredSolo) -> int:
    """The serial number of the certificate that a new connection is shown."""
    with (
        cluster.raw("SASL_SSL") as raw,
        cluster.tls().wrap_socket(raw.socket, server_hostname="127.0.0.1") as tls,
    ):
        der = tls.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def _wait_other_serial(cluster: SecuredSolo, held: int, what: str) -> int:
    def others() -> int | None:
        # Kafka's network threads take the new store one after the other.
        shown = {_serial(cluster) for _ in range(8)}
        return shown.pop() if len(shown) == 1 and held not in shown else None

    return wait_until(others, what, PATIENCE_S) or 0


@pytest.mark.rule("SEC-17")
def test_stores_are_exchanged_at_run_time(both: Both):
    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines: list[str] = []

        def store(name: str, subject: str, names: tuple[str, ...]) -> str:
            path = cluster.directory / name
            path.write_text(cluster.authority.issue(subject, names).keystore)
            return str(path)

        held = _serial(cluster)

        def exchange(what: str, settings: dict[str, str | None], *, changes: bool) -> None:
            nonlocal held
            lines.append(what)
            alter_broker(cluster, settings, lines)
            if changes:
                held = _wait_other_serial(cluster, held, what)
            assert _serial(cluster) == held, what

        location, kind, password = (f"{KEYSTORE}.{key}" for key in ("location", "type", "password"))
        exchange(
            "the same name",
            {location: store("again.pem", "broker", HOSTS), kind: "PEM"},
            changes=True,
        )
        exchange("another subject", {location: store("dn.pem", "other", HOSTS)}, changes=False)
        exchange(
            "other names", {location: store("san.pem", "broker", ("127.0.0.1",))}, changes=False
        )
        exchange("missing", {location: str(cluster.directory / "missing.pem")}, changes=False)
        again = store("again.pem", "broker", HOSTS)
        exchange("the same path, another file", {location: again}, changes=True)
        packed = cluster.directory / "again.p12"
        packed.write_bytes(_pkcs12(cluster, "broker", HOSTS, "packed"))
        wrong = {location: str(packed), kind: "PKCS12", password: "wrong"}
        exchange("a wrong password", wrong, changes=False)
        exchange("PKCS12", wrong | {password: "packed"}, changes=True)
        config = cluster.znode("/config/brokers/1")["config"]
        fields = sorted(part.partition(":")[0] for part in config[password].split(","))
        lines.append(f"{fields} {'packed' in config[password]}")
        exchange("removed", {location: None, kind: None, password: None}, changes=True)
        return lines

    agree(both, dialogue)


@pytest.mark.rule("SEC-20")
@pytest.mark.parametrize(("maker", "reader"), [(Kind.KAFKA, Kind.KLAMM), (Kind.KLAMM, Kind.KAFKA)])
def test_a_password_that_one_has_encrypted_is_read_by_the_other(
    both: Both, maker: Kind, reader: Kind
):
    def store(cluster: SecuredSolo) -> dict[str, str | None]:
        path = cluster.directory / "shared.p12"
        path.write_bytes(_pkcs12(cluster, "broker", HOSTS, "packed"))
        return {f"{KEYSTORE}.location": str(path), f"{KEYSTORE}.type": "PKCS12"}

    password = f"{KEYSTORE}.password"
    before = {kind: _serial(cluster) for kind, cluster in both.items()}
    assert alter_broker(both[maker], store(both[maker]) | {password: "packed"}, []) == 0
    encrypted = both[maker].znode("/config/brokers/1")["config"][password]
    config = {**store(both[reader]), password: encrypted}
    both[reader].announce("brokers/1", {"version": 1, "config": config})
    for kind, cluster in both.items():
        shown = _wait_other_serial(cluster, before[kind], f"{kind} has read the password")
        cluster.announce("brokers/1", {"version": 1, "config": {}})
        _wait_other_serial(cluster, shown, f"{kind} has its own store again")


def _pkcs12(cluster: SecuredSolo, name: str, hosts: tuple[str, ...], password: str) -> bytes:
    pair = cluster.authority.issue(name, hosts)
    key = load_pem_private_key(pair.key.encode(), None)
    certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
    return pkcs12.serialize_key_and_certificates(
        b"broker",
        key,  # type: ignore[arg-type]
        certificate,
        [x509.load_pem_x509_certificate(cluster.authority.certificate.encode())],
        BestAvailableEncryption(password.encode()),
    )


@pytest.mark.rule("SEC-16")
def test_described_settings_show_no_secret(both: Both):
    def dialogue(cluster: SecuredSolo) -> list[str]:
        with cluster.talk("admin") as talk:
            resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
            response = talk.raw.ask(
                K.DESCRIBE_CONFIGS,
                4,
                resources=[resource],
                include_synonyms=True,
                include_documentation=False,
            )
        text = str(response)
        assert not any(secret in text for secret in (*PASSWORDS.values(), "encoder-secret"))
        return [
            f"{each.name}: {each.value} {each.is_sensitive}"
            for each in sorted(response.results[0].configs, key=lambda each: each.name)
            if each.is_sensitive
        ]

    agree(both, dialogue)
