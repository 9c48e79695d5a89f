"""Authentication at the listeners of a real broker, frame by frame."""

import datetime
import socket
import ssl
import struct
import time

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from klamm.local.certificates import CertificateAuthority
from klamm.net.sasl import ScramLogin
from klamm.net.scram import ScramMechanism
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from tests.support.processes import memory_kb
from tests.support.raw import Raw
from tests.support.secured import PLANTED, REAUTH_MS, SecuredBroker, log_in, plain
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture
def raw(secured: SecuredBroker):
    with Raw(secured.ports["SASL_PLAINTEXT"]) as connection:
        yield connection


def metadata(raw: Raw) -> int:
    """Ask something that needs no permission; how many brokers the response names."""
    return len(raw.metadata().brokers)


@pytest.mark.rule("SEC-1")
def test_nothing_is_served_before_the_handshake(raw):
    raw.send(ApiKey.METADATA, 1, topics=[])
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-1")
def test_api_versions_may_come_once(raw):
    assert raw.ask(ApiKey.API_VERSIONS, 0).error_code == 0
    raw.send(ApiKey.API_VERSIONS, 0)
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-1")
def test_a_large_api_versions_counts_as_one(raw):
    large = {"client_software_name": "a" * 100_000, "client_software_version": "1"}
    assert raw.ask(ApiKey.API_VERSIONS, 3, **large).error_code == 0
    raw.send(ApiKey.API_VERSIONS, 0)
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-1")
def test_a_bad_software_name_may_be_repeated(raw):
    names = {"client_software_name": "!", "client_software_version": "1"}
    assert raw.ask(ApiKey.API_VERSIONS, 3, **names).error_code == ErrorCode.INVALID_REQUEST
    good = {"client_software_name": "raw", "client_software_version": "1"}
    assert raw.ask(ApiKey.API_VERSIONS, 3, **good).error_code == 0


@pytest.mark.rule("SEC-1")
def test_after_the_handshake_another_api_is_illegal_and_closed(raw):
    assert raw.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == 0
    response = raw.ask(ApiKey.LIST_GROUPS, 1)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-1")
def test_a_frame_that_is_too_large_closes_before_anything_of_it_has_come(raw):
    raw.socket.sendall(struct.pack(">i", 524_289))
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-1")
@pytest.mark.parametrize(
    "frame", [b"", b"\0", b"\0\x11", b"\xff" * 40, struct.pack(">hhi", 17, 1, 7)]
)
def test_frames_that_are_no_requests_close(raw, frame):
    raw.socket.sendall(struct.pack(">i", len(frame)) + frame)
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-15")
@pytest.mark.parametrize("count", [0x7FFFFFFF, -1 & 0x7FFFFFFF, 0x00FFFFFF])
def test_a_count_beyond_the_frame_closes_before_authentication(raw, count):
    # SaslAuthenticate v0: the length of the token, of which nothing follows.
    assert raw.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == 0
    frame = struct.pack(">hhi", 36, 0, 9) + struct.pack(">h", -1) + struct.pack(">i", count)
    raw.socket.sendall(struct.pack(">i", len(frame)) + frame)
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-1")
def test_after_completion_both_apis_are_illegal_and_the_connection_goes_on(raw):
    assert log_in(raw, "PLAIN", plain("alice")).error_code == 0
    illegal = ErrorCode.ILLEGAL_SASL_STATE
    assert raw.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == illegal
    assert raw.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=b"").error_code == illegal
    assert metadata(raw) == 1


@pytest.mark.rule("SEC-1")
def test_without_sasl_both_apis_are_illegal_and_the_connection_goes_on(secured):
    with Raw(secured.ports["PLAINTEXT"]) as raw:
        illegal = ErrorCode.ILLEGAL_SASL_STATE
        assert raw.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == illegal
        assert raw.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=b"").error_code == illegal
        assert metadata(raw) == 1


@pytest.mark.rule("SEC-1")
def test_tokens_are_bare_frames_after_a_handshake_of_version_0(raw):
    assert raw.ask(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN").error_code == 0
    token = plain("alice")
    raw.socket.sendall(struct.pack(">i", len(token)) + token)
    assert raw.receive() == b""
    assert metadata(raw) == 1


@pytest.mark.rule("SEC-1")
def test_a_bad_bare_token_only_closes(raw):
    assert raw.ask(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN").error_code == 0
    token = plain("alice", "wrong")
    raw.socket.sendall(struct.pack(">i", len(token)) + token)
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-2")
def test_an_unknown_mechanism_is_told_the_enabled_ones(raw):
    response = raw.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="GSSAPI")
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert response.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-2", "SEC-3")
@pytest.mark.parametrize("token", [b"\0alice\0wrong", b"\0nobody\0wrong", b""])
def test_a_failed_login_is_answered_late_and_alike_then_closed(raw, token):
    began = time.monotonic()
    response = log_in(raw, "PLAIN", token)
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == "Authentication failed: Invalid username or password"
    assert time.monotonic() - began >= 0.1
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-2", "SEC-5")
def test_a_success_has_an_empty_message_and_no_end_where_none_is_set(raw):
    response = log_in(raw, "PLAIN", plain("alice"))
    assert (response.error_message, response.auth_bytes) == ("", b"")
    assert response.session_lifetime == datetime.timedelta(0)


def scram(raw: Raw, user: str, password: str) -> object:
    login = ScramLogin(ScramMechanism.SCRAM_SHA_256, user, password, nonce="fixed")
    assert raw.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256").error_code == 0
    first = raw.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=login.on_challenge(b""))
    assert first.error_code == 0
    final = login.on_challenge(first.auth_bytes)
    return raw.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=final)


@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "wrong")])
def test_scram_fails_alike_for_a_wrong_password_and_an_unknown_user(raw, user, password):
    response = scram(raw, user, password)
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert user not in response.error_message
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-4", "SEC-5")
def test_a_session_ends_unless_it_is_authenticated_again(raw):
    response = scram(raw, "alice", PLANTED["alice"])
    assert response.session_lifetime == datetime.timedelta(milliseconds=REAUTH_MS)
    assert scram(raw, "alice", PLANTED["alice"]).error_code == 0
    again = raw.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
    assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE, "it is less than a second ago"
    assert metadata(raw) == 1
    raw.socket.settimeout(10)
    with pytest.raises(ConnectionError):
        wait_until(lambda: metadata(raw) != 1, "the session ends")


@pytest.mark.rule("SEC-5")
def test_another_principal_cannot_take_the_session_over(raw):
    assert scram(raw, "alice", PLANTED["alice"]).error_code == 0
    response = scram(raw, "admin", PLANTED["admin"])
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert raw.is_closed_by_peer()


def bearer(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


@pytest.mark.rule("SEC-14", "SEC-5")
def test_a_signed_token_logs_in_for_the_rest_of_its_life(secured, raw):
    response = log_in(raw, "OAUTHBEARER", bearer(secured.token()))
    assert response.error_code == 0
    assert 0 < response.session_lifetime.total_seconds() <= 60
    assert metadata(raw) == 1


@pytest.mark.rule("SEC-14")
@pytest.mark.parametrize(
    "change",
    [
        {"header": {"alg": "none"}},
        {"header": {"alg": "HS256"}},
        {"header": {"alg": "RS256"}},
        {"header": {"kid": "key-2"}},
        {"header": {"crit": ["exp"]}},
        {"sub": None},
        {"sub": " "},
        {"iss": "somebody"},
        {"aud": "others"},
        {"exp": None},
        {"exp": 1},
        {"nbf": 4_000_000_000},
        {"iat": None},
        {"iat": 4_000_000_000},
    ],
    ids=str,
)
def test_a_token_that_is_not_believed_is_refused(secured, raw, change):
    told = log_in(raw, "OAUTHBEARER", bearer(secured.token(**change)))
    assert (told.error_code, told.auth_bytes) == (0, b'{"status":"invalid_token"}')
    response = raw.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=b"\x01")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert raw.is_closed_by_peer()


@pytest.mark.rule("SEC-14")
def test_a_token_whose_signature_was_changed_is_refused(secured, raw):
    token = secured.token()
    told = log_in(raw, "OAUTHBEARER", bearer(token[:-8] + "AAAAAAAA"))
    assert told.auth_bytes == b'{"status":"invalid_token"}'


# TLS


def tls_connection(secured: SecuredBroker, context: ssl.SSLContext, name: str = "SSL") -> Raw:
    raw = Raw(secured.ports[name])
    raw.socket = context.wrap_socket(raw.socket, server_hostname="127.0.0.1")
    return raw


@pytest.mark.rule("SEC-6")
def test_bytes_that_are_no_tls_get_at_most_an_alert(secured):
    with socket.create_connection(("127.0.0.1", secured.ports["SSL"]), timeout=10) as plain_socket:
        plain_socket.sendall(struct.pack(">ihhi", 10, 18, 0, 1) + b"\xff\xff")
        received = b""
        try:
            while more := plain_socket.recv(100):
                received += more
        except ConnectionError:
            pass
    assert len(received) <= 7


def subject(name: str, unit: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if unit is not None:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
    return x509.Name(attributes)


@pytest.mark.rule("SEC-6")
def test_a_certificate_is_its_mapped_principal(secured):
    certificate = secured.authority.issue(subject("Alice", "users"))
    with tls_connection(secured, secured.tls(certificate)) as raw:
        assert metadata(raw) == 1
        response = raw.ask(ApiKey.DESCRIBE_ACLS, 1, **ANY_ACL)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with tls_connection(secured, secured.tls(secured.authority.issue("admin"))) as raw:
        assert raw.ask(ApiKey.DESCRIBE_ACLS, 1, **ANY_ACL).error_code == 0


ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@pytest.mark.rule("SEC-6")
def test_a_subject_that_no_rule_matches_is_closed_without_a_response(secured):
    with tls_connection(secured, secured.tls(secured.authority.issue("mallory"))) as raw:
        raw.send(ApiKey.API_VERSIONS, 0)
        assert raw.is_closed_by_peer()


def refused(secured: SecuredBroker, context: ssl.SSLContext, name: str = "SSL") -> bool:
    """Whether the broker refuses the handshake, or ends the connection right after it."""
    try:
        with tls_connection(secured, context, name) as raw:
            raw.send(ApiKey.API_VERSIONS, 0)
            return raw.socket.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.mark.rule("SEC-6")
def test_no_certificate_a_strangers_and_an_expired_one_are_refused(secured):
    assert refused(secured, secured.tls())
    assert refused(secured, secured.tls(CertificateAuthority("stranger").issue("admin")))
    expired = secured.authority.issue("admin", life=datetime.timedelta(days=-1))
    assert refused(secured, secured.tls(expired))


@pytest.mark.rule("SEC-6")
def test_on_sasl_ssl_a_certificate_is_never_the_principal(secured):
    context = secured.tls(secured.authority.issue("admin"))
    with tls_connection(secured, context, "SASL_SSL") as raw:
        assert log_in(raw, "PLAIN", plain("alice")).error_code == 0
        response = raw.ask(ApiKey.DESCRIBE_ACLS, 1, **ANY_ACL)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.rule("SEC-6")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_of_tls_are_refused(secured):
    context = secured.tls(secured.authority.issue("admin"))
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    assert refused(secured, context)


def test_a_thousand_half_open_connections_cost_little_and_stop_nobody(secured):
    sockets = []
    before_kb = memory_kb(secured.cluster[1].pid)
    try:
        for number in range(500):
            # Every other one has begun: half of a TLS record, half of a frame.
            for name, begun in (("SSL", b"\x16\x03\x01\x02\0\x01"), ("SASL_PLAINTEXT", b"\0\0")):
                sockets.append(socket.create_connection(("127.0.0.1", secured.ports[name])))
                sockets[-1].sendall(begun if number % 2 else b"")
        with secured.raw("admin") as raw:
            assert metadata(raw) == 1
        assert memory_kb(secured.cluster[1].pid) - before_kb < 150 * 1024
    finally:
        for each in sockets:
            each.close()


@pytest.mark.rule("SEC-16")
def test_the_log_shows_no_password_key_or_token(secured):
    for secret in PLANTED.values():
        assert secret not in secured.log
    assert "stored_key" not in secured.log
    assert "Bearer" not in secured.log
