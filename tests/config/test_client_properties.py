"""Client properties: what a connection needs, and what is refused."""

import pytest

from klamm.config.client_properties import ClientSecurity
from klamm.config.jaas import PLAIN_MODULE, format_jaas
from klamm.config.security import ALLOWED_URLS, MECHANISMS
from klamm.errors import ConfigError
from klamm.net.sasl import read_token

JAAS = 'a.ScramLoginModule required username="alice" password="planted-pw";'


def security(**given: str) -> ClientSecurity:
    return ClientSecurity.from_properties({k.replace("_", "."): v for k, v in given.items()})


def test_nothing_means_plaintext():
    assert security() == ClientSecurity()


@pytest.mark.parametrize("mechanism", [each for each in MECHANISMS if each != "OAUTHBEARER"])
def test_a_login_is_read_from_jaas(mechanism):
    found = security(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_jaas_config=JAAS
    )
    assert found.sasl is not None
    assert (found.sasl.username, found.sasl.password) == ("alice", "planted-pw")
    assert "planted-pw" not in repr(found)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"security_protocol": "TLS"}, "one of PLAINTEXT"),
        ({"security_protocol": "SASL_SSL"}, "not GSSAPI"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "has to be set"),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_jaas_config": "a.PlainLoginModule required;",
            },
            "username and password",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_jaas_config": "com.sun.security.auth.module.JndiLoginModule required "
                'user.provider.url="ldap://stranger" username="a" password="b";',
            },
            "JndiLoginModule: klamm has only",
        ),
    ],
)
def test_what_lacks_a_part_is_refused(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        security(**given)


def test_a_value_that_refers_to_a_file_or_the_environment_is_not_followed():
    jaas = format_jaas(PLAIN_MODULE, {"username": "${env:HOME}", "password": "${file:/a:b}"})
    found = ClientSecurity.from_properties(
        {
            "config.providers": "env,file",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": jaas,
        }
    )
    assert found.sasl is not None
    assert (found.sasl.username, found.sasl.password) == ("${env:HOME}", "${file:/a:b}")


@pytest.mark.rule("SEC-14")
@pytest.mark.parametrize("url", ["http://keys.example/jwks", "ftp://keys", "/etc/passwd"])
def test_keys_and_tokens_come_from_https_or_a_named_file_only(url):
    base = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "a.PlainLoginModule required;",
    }
    with pytest.raises(ConfigError, match="https"):
        ClientSecurity.from_properties({**base, "sasl.oauthbearer.jwks.endpoint.url": url})
    token = {**base, "sasl.oauthbearer.token.endpoint.url": url}
    sasl = ClientSecurity.from_properties(token).sasl
    assert sasl is not None
    with pytest.raises(ConfigError):
        read_token(sasl)


@pytest.mark.rule("SEC-14")
def test_an_operator_lists_the_urls_that_configurations_may_name(monkeypatch):
    base = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "a.PlainLoginModule required;",
    }
    keys = ("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.jwks.endpoint.url")
    monkeypatch.setenv(ALLOWED_URLS, "https://good.example/token, file:/etc/keys.json")
    for key in keys:
        for url in ("https://good.example/token", "file:/etc/keys.json"):
            ClientSecurity.from_properties({**base, key: url})
        for url in ("https://good.example/token/", "https://evil.example", "file:/etc/shadow"):
            with pytest.raises(ConfigError, match=f"{key}.*{ALLOWED_URLS}"):
                ClientSecurity.from_properties({**base, key: url})
    monkeypatch.setenv(ALLOWED_URLS, "")
    with pytest.raises(ConfigError, match="allows: none"):
        ClientSecurity.from_properties({**base, keys[0]: "https://good.example/token"})
