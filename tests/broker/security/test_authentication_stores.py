"""Key stores that are exchanged while the broker serves (SEC-17, SEC-20)."""

import ssl

import pytest

from klamm.client import configs
from klamm.client.configs import ConfigResource
from klamm.local.certificates import CertificateAuthority
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError
from tests.support.raw import Raw
from tests.support.secured import SecuredBroker
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.rule("SEC-17")]

KEY = "listener.name.ssl.ssl.keystore.location"
HOSTS = ("127.0.0.1", "localhost")


def serial_of(secured: SecuredBroker, protocol: str = "SSL") -> str:
    """The serial number of the certificate that a listener shows."""
    with Raw(secured.ports[protocol]) as raw:
        context = secured.tls(secured.authority.issue("admin"))
        with context.wrap_socket(raw.socket, server_hostname="127.0.0.1") as connected:
            shown = connected.getpeercert()
    assert shown is not None
    return str(shown["serialNumber"])


def alter(secured: SecuredBroker, **settings: str) -> None:
    with secured.admin() as admin:
        configs.alter(
            admin, ConfigResource.broker(1), {k.replace("__", "."): v for k, v in settings.items()}
        )


def set_store(secured: SecuredBroker, path: str) -> None:
    alter(secured, **{KEY.replace(".", "__"): path})


def test_a_new_certificate_of_the_same_name_is_shown_to_new_connections(secured):
    before, other = serial_of(secured), serial_of(secured, "SASL_SSL")
    context = secured.tls(secured.authority.issue("admin"))
    with Raw(secured.ports["SSL"]) as raw:
        raw.socket = context.wrap_socket(raw.socket, server_hostname="127.0.0.1")
        assert raw.metadata().brokers
        path = secured.directory / "renewed.pem"
        path.write_text(secured.authority.issue("broker", HOSTS).keystore)
        set_store(secured, str(path))
        wait_until(lambda: serial_of(secured) != before, "the new certificate is shown")
        assert raw.metadata().brokers, "a connection that exists goes on"
    assert serial_of(secured, "SASL_SSL") == other, "other listeners keep theirs"


def refused(secured: SecuredBroker, path: str) -> str:
    before = serial_of(secured)
    with pytest.raises(KafkaError) as refusal:
        set_store(secured, path)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    assert serial_of(secured) == before
    return str(refusal.value)


def test_another_subject_other_names_and_a_missing_file_change_nothing(secured):
    def store(name: str, hosts: tuple[str, ...] = HOSTS) -> str:
        path = secured.directory / "other.pem"
        path.write_text(secured.authority.issue(name, hosts).keystore)
        return str(path)

    assert "another subject" in refused(secured, store("somebody-else"))
    assert "another names" in refused(secured, store("broker", ("127.0.0.1", "evil.example")))
    assert "cannot be read" in refused(secured, str(secured.directory / "missing.pem"))


@pytest.mark.rule("SEC-20", "SEC-16")
def test_a_password_cannot_be_a_dynamic_setting_without_a_secret_to_encrypt_it(secured):
    with pytest.raises(KafkaError) as refusal:
        alter(secured, **{"listener__name__ssl__ssl__keystore__password": "planted-dynamic-pw"})
    assert "planted-dynamic-pw" not in str(refusal.value)
    assert "planted-dynamic-pw" not in secured.log


@pytest.mark.rule("SEC-16")
def test_describe_configs_shows_no_secret(secured):
    with secured.raw("admin") as raw:
        response = raw.ask(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            resources=[{"resource_type": 4, "resource_name": "1", "configuration_keys": None}],
            include_synonyms=True,
            include_documentation=False,
        )
    shown = {entry.name: entry for entry in response.results[0].configs}
    for name in ("listener.name.sasl_ssl.plain.sasl.jaas.config", "super.users"):
        assert (shown[name].value, shown[name].is_sensitive) == (None, True)
        assert all(synonym.value is None for synonym in shown[name].synonyms)
    assert "planted" not in repr(response)


def test_a_strangers_broker_is_not_believed(secured):
    context = ssl.create_default_context(cadata=CertificateAuthority("other").certificate)
    with Raw(secured.ports["SSL"]) as raw, pytest.raises(ssl.SSLError):
        context.wrap_socket(raw.socket, server_hostname="127.0.0.1")
