"""Logins and certificates are taken and refused alike by a broker of either kind."""

import re
import time
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
)
from cryptography.x509.oid import NameOID

from klamm.broker.security.principals import subject_of
from klamm.net.scram import ScramMechanism
from klamm.protocol.acls import AclOperation, ResourceType
from klamm.protocol.apis import APIS
from klamm.protocol.apis import ApiKey as K
from klamm.protocol.codec.frames import encode_request
from klamm.protocol.codec.headers import RequestHeader
from tests.interop.security.dialogue import (
    PASSWORDS,
    PATIENCE_S,
    REAUTH_MS,
    SASL,
    Both,
    SecuredSolo,
    Talk,
    agree,
    exists,
    handshake,
    plain_token,
    sample,
    upsertion,
)
from tests.support.tokens import TokenIssuer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Op, T = AclOperation, ResourceType
SCRAM = ScramMechanism.SCRAM_SHA_256
ALICE = plain_token("alice")


# Authentication


@pytest.mark.rule("SEC-1")
def test_the_order_of_an_exchange(both: Both):
    def api_versions(talk: Talk, version: int, name: str = "raw") -> None:
        """Only whether it was answered, and how: the versions themselves differ."""
        header = RequestHeader(K.API_VERSIONS, version, 7, "raw")
        known = min(version, 4)
        frame = bytearray(
            encode_request(
                header._replace(api_version=known),
                sample(K.API_VERSIONS, known, client_software_name=name),
            )
        )
        frame[6:8] = version.to_bytes(2)
        talk.raw.socket.sendall(frame)
        try:
            talk.lines.append(f"ApiVersions {version} {name}: {talk.raw.receive()[:6].hex()}")
        except (ConnectionError, EOFError):
            talk.lines.append(f"ApiVersions {version} {name}: closed")

    def no_frames(talk: Talk) -> None:
        talk.raw.socket.sendall(b"\0\0\0\0")
        talk.ends()

    def too_large(talk: Talk) -> None:
        talk.raw.socket.sendall((524_289).to_bytes(4))
        talk.lines.append(f"524,289 bytes: {talk.raw.is_closed_by_peer()}")

    def negative(talk: Talk) -> None:
        talk.raw.socket.sendall(b"\xff\xff\xff\xff")
        talk.lines.append(f"-1 bytes: {talk.raw.is_closed_by_peer()}")

    steps: list[list[Callable[[Talk], object]]] = [
        *([lambda t, v=v: api_versions(t, v), handshake] for v in range(5)),
        [
            lambda t: api_versions(t, 99),
            lambda t: api_versions(t, 99),
            lambda t: api_versions(t, 3),
            handshake,
            lambda t: t.token(ALICE),
            lambda t: t.ends(),
        ],
        [lambda t: api_versions(t, 3, "-bad"), lambda t: api_versions(t, 3), handshake],
        [lambda t: api_versions(t, 3), lambda t: api_versions(t, 3)],
        [lambda t: api_versions(t, 3), lambda t: api_versions(t, 99)],
        [handshake, lambda t: api_versions(t, 3)],
        [handshake, handshake],
        [lambda t: t.token(ALICE)],
        [handshake, lambda t: t.token(ALICE), lambda t: api_versions(t, 3), lambda t: t.ends()],
        [handshake, lambda t: t.token(ALICE), handshake, lambda t: t.ends()],
        [handshake, lambda t: t.token(ALICE), lambda t: t.token(ALICE), lambda t: t.ends()],
        *(
            [handshake, lambda t, v=v: t.token(ALICE, version=v), lambda t: t.ends()]
            for v in range(3)
        ),
        [lambda t: handshake(t, version=0), lambda t: t.bare(ALICE), lambda t: t.ends()],
        [lambda t: handshake(t, version=0), lambda t: t.bare(plain_token("alice", "wrong"))],
        [lambda t: handshake(t, version=0), lambda t: t.bare(b"")],
        [lambda t: handshake(t, "GSSAPI", 0), lambda t: t.ends()],
        [lambda t: handshake(t, "GSSAPI"), lambda t: t.ends()],
        [lambda t: handshake(t, "plain"), lambda t: t.ends()],
        [lambda t: handshake(t, ""), lambda t: t.ends()],
        [no_frames],
        [too_large],
        [negative],
        [handshake, too_large],
    ]

    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines = []
        for sequence in steps:
            with cluster.talk() as talk:
                talk.lines.append("---")
                for step in sequence:
                    try:
                        step(talk)
                    except (ConnectionError, EOFError):
                        talk.lines.append("closed")
                        break
                    if talk.lines[-1].endswith("closed"):
                        break
                lines += talk.lines
        return lines

    agree(both, dialogue)


@pytest.mark.rule("SEC-1")
def test_every_api_before_and_after_the_handshake(both: Both):
    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines = []
        for key, api in APIS.items():
            if key in SASL:
                continue
            asked = ((False, api.max_version), (True, api.first_decoded), (True, api.max_version))
            for begins, version in asked:
                with cluster.talk() as talk:
                    if begins:
                        handshake(talk)
                    talk.lines.clear()
                    talk.ask(K(key), version, note="no login", **sample(K(key), version))
                    talk.lines.append(f"closed then: {talk.raw.is_closed_by_peer()}")
                    # Messages differ with the API, and say nothing that the code does not.
                    lines += [
                        re.sub(r"'error_message': ('[^']*'|None)", "", each) for each in talk.lines
                    ]
        return lines

    agree(both, dialogue)


@pytest.mark.rule("SEC-1")
def test_both_apis_of_sasl_on_listeners_without_it(both: Both):
    def dialogue(cluster: SecuredSolo) -> list[str]:
        with cluster.talk(protocol="PLAINTEXT") as talk:
            for version in range(2):
                handshake(talk, version=version)
                handshake(talk, "GSSAPI", version)
            for version in range(3):
                talk.token(ALICE, version)
            talk.ends()
            return talk.lines

    agree(both, dialogue)


@pytest.mark.rule("SEC-2", "SEC-3")
def test_tokens_of_plain(both: Both):
    long = b"x" * 100_000
    given = [
        ALICE,
        plain_token("alice", authzid="alice"),
        plain_token("alice", authzid="bob"),
        plain_token("alice", "wrong"),
        plain_token("alice", "wrong", authzid="bob"),
        b"\0mallory\0alice-secret",
        b"\0\0alice-secret",
        b"\0alice\0",
        b"\0\0",
        b"",
        b"\0",
        b"alice\0alice-secret",
        b"\0alice\0alice-secret\0",
        b"\0alice\0alice-secret\0more",
        b"\0al\xffice\0alice-secret",
        b"\0alice\0" + long,
        b"\0" + long + b"\0alice-secret",
    ]

    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines = []
        for token in given:
            with cluster.talk() as talk:
                handshake(talk)
                response = talk.token(token, note=repr(token[:60]))
                if response is not None and response.error_code:
                    assert b"alice" not in str(response.error_message).encode()
                talk.ends()
                lines += talk.lines
        return lines

    # Kafka says what is wrong with a token of another form; klamm has one message (SEC-2).
    agree(both, lambda cluster: [_with_one_message(each) for each in dialogue(cluster)])


def _with_one_message(line: str) -> str:
    return re.sub(r"(failed: 58>), 'error_message': '[^']*'", r"\1", line)


@pytest.mark.rule("SEC-4")
def test_messages_of_scram(both: Both):
    _make_scram_users(both)
    first = [
        "n,,n=alice,r=abc",
        "n,a=alice,n=alice,r=abc",
        "n,a=bob,n=alice,r=abc",
        "n,a=,n=alice,r=abc",
        "n,alice,n=alice,r=abc",
        "n,,n=ali=2Cce,r=abc",
        "n,,n=ali=3Dce,r=abc",
        "n,,n=ali=2cce,r=abc",
        "n,,n=ali=20ce,r=abc",
        "n,,n=ali=,r=abc",
        "n,,n=,r=abc",
        "n,,n=alice",
        "n,,n=alice,r=",
        "n,,r=abc,n=alice",
        "n,,n=alice,r=abc,e=more",
        "n,,n=alice,r=abc,e=more,f=even more",
        "n,,n=alice,r=abc,more",
        "n,,n=alice,r=abc,",
        "n,,n=alice,r=abc,tokenauth=false",
        "n,,n=alice,r=a b",
        "n,,n=alice,r=a\x7fb",
        "n,,n=alice,r=äb",
        "y,,n=alice,r=abc",
        "p=tls-unique,,n=alice,r=abc",
        "N,,n=alice,r=abc",
        "n,n=alice,r=abc",
        "n=alice,r=abc",
        "",
        "n,,n=alice,r=abc\n",
        "\nn,,n=alice,r=abc",
        "n,,n=al\nice,r=abc",
        "n,,n=few,r=abc",
    ]

    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines = []
        for message in first:
            with cluster.talk() as talk:
                handshake(talk, "SCRAM-SHA-512")
                response = talk.raw.ask(K.SASL_AUTHENTICATE, 2, auth_bytes=message.encode())
                told = re.sub(r"r=abc[^,]+", "r=abc", bytes(response.auth_bytes).decode())
                lines.append(f"{message!r}: {response.error_code} {told.split(',')[0][:5]}")
                if "=2" in message or "=3" in message or "al\nice" in message:
                    # Nobody of that name: Kafka fails at once, klamm leads him on (SEC-4).
                    lines[-1] = f"{message!r}: unknown"
        return lines

    agree(both, dialogue)


def _make_scram_users(both: Both) -> None:
    """alice in both mechanisms; few with fewer iterations than are accepted."""
    for cluster in both.values():
        with cluster.talk("admin") as talk:
            changes = [
                upsertion("alice", mechanism, PASSWORDS["alice"]) for mechanism in ScramMechanism
            ]
            body = {"deletions": [], "upsertions": changes}
            response = talk.raw.ask(K.ALTER_USER_SCRAM_CREDENTIALS, 0, **body)
            assert response.results[0].error_code == 0

        few = "salt=c2FsdA==,stored_key=a2V5,server_key=a2V5,iterations=100"
        config = {"version": 1, "config": {"SCRAM-SHA-512": few}}
        cluster.announce("users/few", config)

        def knows_alice(cluster: SecuredSolo = cluster) -> bool:
            with cluster.talk() as talk:
                handshake(talk, "SCRAM-SHA-512")
                found = talk.scram("alice", PASSWORDS["alice"], ScramMechanism.SCRAM_SHA_512)
                return len(found) == 2 and found[1].error_code == 0

        wait_until(knows_alice, "alice's credential is in force", PATIENCE_S)


@pytest.mark.rule("SEC-4", "SEC-2")
def test_logins_with_scram(both: Both):
    _make_scram_users(both)

    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines = []
        for mechanism in ScramMechanism:
            with cluster.talk() as talk:
                handshake(talk, mechanism.mechanism_name)
                (_, last) = talk.scram("alice", PASSWORDS["alice"], mechanism)
                lifetime = last.session_lifetime.total_seconds() * 1000
                talk.lines.append(f"lifetime {lifetime:g}")
                talk.ends()
                lines += talk.lines
            with cluster.talk() as talk:
                handshake(talk, mechanism.mechanism_name)
                talk.scram("alice", "wrong", mechanism)
                talk.ends()
                lines += talk.lines
        return lines

    agree(both, dialogue)


@pytest.mark.rule("SEC-5")
def test_reauthentication(both: Both):
    _make_scram_users(both)

    def login(talk: Talk, user: str = "alice", password: str | None = None) -> None:
        talk.scram(user, password or PASSWORDS[user], SCRAM)

    def scram(talk: Talk) -> None:
        handshake(talk, "SCRAM-SHA-256")

    def wait(talk: Talk) -> None:
        time.sleep(1.1)  # the rule is about time: a second has to pass between two of them

    def outlive(talk: Talk) -> None:
        time.sleep(REAUTH_MS / 1000 + 0.2)

    def metadata(talk: Talk) -> None:
        talk.ends()

    sequences: list[list[Callable[[Talk], object]]] = [
        [scram, login, scram, login, metadata],
        [scram, login, scram, login, scram, metadata],
        [scram, login, scram, login, wait, scram, login, metadata],
        [scram, login, scram, lambda t: login(t, password="wrong"), metadata],
        [scram, login, handshake, lambda t: t.token(ALICE), metadata],
        [scram, login, lambda t: handshake(t, "GSSAPI"), metadata],
        [scram, login, scram, metadata],
        [scram, login, lambda t: t.token(ALICE), metadata],
        [scram, login, outlive, metadata],
        [scram, login, outlive, scram, login, metadata],
        [scram, login, outlive, lambda t: t.token(ALICE)],
        [scram, login, lambda t: handshake(t, "SCRAM-SHA-256", 0), metadata],
    ]

    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines = []
        for sequence in sequences:
            with cluster.talk() as talk:
                talk.lines.append("---")
                for step in sequence:
                    step(talk)
                    if talk.lines[-1].endswith("closed"):
                        break
                lines += talk.lines
        return lines

    agree(both, dialogue)


@pytest.mark.rule("SEC-14")
def test_bearer_tokens(both: Both, tokens: TokenIssuer):
    good = tokens.token()
    head, _, rest = good.partition(".")
    given = {
        "good": f"n,,\x01auth=Bearer {good}\x01\x01",
        "its own authzid": f"n,a=alice,\x01auth=Bearer {good}\x01\x01",
        "another authzid": f"n,a=bob,\x01auth=Bearer {good}\x01\x01",
        "lower case": f"n,,\x01auth=bearer {good}\x01\x01",
        "an extension": f"n,,\x01auth=Bearer {good}\x01traceId=1\x01\x01",
        "no token": "n,,\x01auth=Bearer \x01\x01",
        "no auth": "n,,\x01traceId=1\x01\x01",
        "not ended": f"n,,\x01auth=Bearer {good}\x01",
        "channel binding": f"y,,\x01auth=Bearer {good}\x01\x01",
        "empty": "",
        "control-A": "\x01",
        "changed": f"n,,\x01auth=Bearer {good[:-6]}AAAAAA\x01\x01",
        "unsigned": f"n,,\x01auth=Bearer {head}.{rest.partition('.')[0]}.\x01\x01",
        **{
            name: f"n,,\x01auth=Bearer {tokens.token(**changes)}\x01\x01"
            for name, changes in {
                "expired": {"exp": int(time.time()) - 100},
                "no expiry": {"exp": None},
                "not yet": {"nbf": int(time.time()) + 1000},
                "issued later": {"iat": int(time.time()) + 1000},
                "no iat": {"iat": None},
                "no subject": {"sub": None},
                "empty subject": {"sub": ""},
                "another issuer": {"iss": "mallory"},
                "no issuer": {"iss": None},
                "another audience": {"aud": "others"},
                "no audience": {"aud": None},
                "several audiences": {"aud": ["others", "kafka"]},
                "another key": {"header": {"kid": "key-2"}},
                "no key": {"header": {"kid": None}},
                "none": {"header": {"alg": "none"}},
                "HS256": {"header": {"alg": "HS256"}},
                "a number as subject": {"sub": 7},
            }.items()
        },
    }

    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines = []
        for name, token in given.items():
            with cluster.talk() as talk:
                handshake(talk, "OAUTHBEARER")
                talk.lines.append(name)
                response = talk.raw.ask(K.SASL_AUTHENTICATE, 2, auth_bytes=token.encode())
                said = bytes(response.auth_bytes)
                talk.lines.append(f"{response.error_code} {said.decode()}")
                if response.error_code == 0 and not said:
                    life = response.session_lifetime.total_seconds()
                    talk.lines.append(f"lives {0 < life <= 60}")
                    talk.ends()
                elif response.error_code == 0:
                    for answer in (b"\x01", token.encode()):
                        last = talk.token(answer, note=name)
                        if last is None or last.error_code:
                            break
                    talk.ends()
                lines += talk.lines
        return [_with_one_message(each) for each in lines]

    agree(both, dialogue)


# Certificates


@pytest.mark.rule("SEC-6")
def test_subjects_become_principals(both: Both):
    a = x509.NameAttribute
    names = {
        "CN=plain": [a(NameOID.COMMON_NAME, "plain")],
        "several": [
            a(NameOID.COUNTRY_NAME, "DE"),
            a(NameOID.STATE_OR_PROVINCE_NAME, "Bavaria"),
            a(NameOID.LOCALITY_NAME, "Town"),
            a(NameOID.ORGANIZATION_NAME, "Org, Inc."),
            a(NameOID.ORGANIZATIONAL_UNIT_NAME, "Unit + One"),
            a(NameOID.STREET_ADDRESS, "1; Street"),
            a(NameOID.DOMAIN_COMPONENT, "example"),
            a(NameOID.COMMON_NAME, ' #Wörd "quoted" <x> \\ '),
        ],
        "e-mail": [a(NameOID.COMMON_NAME, "mail"), a(NameOID.EMAIL_ADDRESS, "a@example.com")],
        "serial": [a(NameOID.COMMON_NAME, "serial"), a(NameOID.SERIAL_NUMBER, "77")],
        "title": [a(NameOID.TITLE, "Dr"), a(NameOID.COMMON_NAME, "title")],
        "equals": [a(NameOID.COMMON_NAME, "a=b")],
        "to lower case": [
            a(NameOID.ORGANIZATIONAL_UNIT_NAME, "low"),
            a(NameOID.COMMON_NAME, "MiXed"),
        ],
        "to upper case": [
            a(NameOID.ORGANIZATIONAL_UNIT_NAME, "up"),
            a(NameOID.COMMON_NAME, "MiXed"),
        ],
    }
    expected = {"to lower case": "low-mixed", "to upper case": "UP-MIXED"}

    def dialogue(cluster: SecuredSolo) -> list[str]:
        lines = []
        for number, (name, attributes) in enumerate(names.items()):
            topic = f"of-subject-{number}"
            if not exists(cluster, topic):
                cluster.create_topic(topic)
            certificate = cluster.authority.issue(x509.Name(attributes))
            parsed = x509.load_pem_x509_certificate(certificate.certificate.encode())
            der = parsed.public_bytes(Encoding.DER)
            principal = expected.get(name) or subject_of(der)
            cluster.put(f"User:{principal}", Op.DESCRIBE, T.TOPIC, topic)
            context = cluster.tls(x509.Name(attributes))
            with cluster.raw("SSL") as raw:
                raw.socket = context.wrap_socket(raw.socket, server_hostname="127.0.0.1")
                found = raw.metadata(topic).topics[0]
                lines.append(f"{name}: {principal}: {found.error_code}")
        return lines

    agree(both, dialogue)
