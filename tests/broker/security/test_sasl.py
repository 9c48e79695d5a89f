"""The SASL state of a connection: what may come when, and what it is answered with."""

import pytest

from klamm.broker.security.mechanisms import Authenticated, PlainServer
from klamm.broker.security.sasl import EnabledMechanism, SaslSession, SaslState, Verdict
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codes import ErrorCode

ALICE = b"\0alice\0a"
BOB = b"\0bob\0b"
OTHERS = [key for key in APIS if key not in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)]


class OneStep:
    """A mechanism that takes anybody, for a limited time."""

    def __init__(self, expires_ms: int | None) -> None:
        self.expires_ms = expires_ms

    def on_token(self, token: bytes) -> Authenticated:
        return Authenticated(token.decode(), expires_ms=self.expires_ms)


def session(reauth_ms: int = 0, expires_ms: int | None = None) -> SaslSession:
    users = {"alice": "a", "bob": "b"}
    return SaslSession(
        {
            "PLAIN": EnabledMechanism(lambda: PlainServer(users), reauth_ms),
            "ONE-STEP": EnabledMechanism(lambda: OneStep(expires_ms), reauth_ms),
        }
    )


def logged_in(reauth_ms: int = 0, now_ms: int = 0) -> SaslSession:
    sasl = session(reauth_ms)
    sasl.on_handshake(1, "PLAIN", now_ms)
    reply = sasl.on_token(ALICE, now_ms)
    assert reply is not None
    assert reply.error is ErrorCode.NONE
    return sasl


@pytest.mark.rule("SEC-1")
def test_before_anything_else_only_api_versions_and_the_handshake_are_served():
    for key in APIS:
        expected = key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE)
        assert session().judge(key, 0) is (Verdict.SERVE if expected else Verdict.CLOSE)


@pytest.mark.rule("SEC-1")
def test_a_failed_api_versions_may_be_repeated_and_a_second_success_closes():
    sasl = session()
    sasl.on_api_versions_answered(ErrorCode.UNSUPPORTED_VERSION)
    assert sasl.judge(ApiKey.API_VERSIONS, 0) is Verdict.SERVE
    sasl.on_api_versions_answered(ErrorCode.NONE)
    assert sasl.judge(ApiKey.API_VERSIONS, 0) is Verdict.CLOSE
    assert sasl.judge(ApiKey.SASL_HANDSHAKE, 0) is Verdict.SERVE


@pytest.mark.rule("SEC-1")
def test_after_the_handshake_everything_but_a_token_is_illegal_and_closes():
    sasl = session()
    sasl.on_handshake(1, "PLAIN", 0)
    assert sasl.judge(ApiKey.SASL_AUTHENTICATE, 0) is Verdict.SERVE
    for key in [*OTHERS, ApiKey.SASL_HANDSHAKE]:
        assert sasl.judge(key, 0) is Verdict.ILLEGAL_THEN_CLOSE


@pytest.mark.rule("SEC-1")
def test_after_a_handshake_of_version_0_frames_are_bare_tokens():
    sasl = session()
    sasl.on_handshake(0, "PLAIN", 0)
    assert sasl.state is SaslState.BARE_TOKENS
    assert sasl.on_token(ALICE, 0).token == b""
    assert sasl.state is SaslState.COMPLETE


@pytest.mark.rule("SEC-1")
def test_after_completion_the_two_apis_are_illegal_and_the_rest_is_served():
    sasl = logged_in()
    assert sasl.user == "alice"
    for key in OTHERS:
        assert sasl.judge(key, 10**12) is Verdict.SERVE
    assert sasl.judge(ApiKey.SASL_HANDSHAKE, 0) is Verdict.ILLEGAL
    assert sasl.judge(ApiKey.SASL_AUTHENTICATE, 0) is Verdict.ILLEGAL


@pytest.mark.rule("SEC-2")
def test_an_unknown_mechanism_is_told_the_enabled_ones_and_closed():
    sasl = session()
    reply = sasl.on_handshake(1, "GSSAPI", 0)
    assert (reply.error, reply.close) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, True)
    assert reply.mechanisms == ("PLAIN", "ONE-STEP")
    for key in APIS:
        assert sasl.judge(key, 0) is Verdict.CLOSE


@pytest.mark.rule("SEC-2")
def test_a_failure_closes_and_leaves_nothing_that_can_be_served():
    sasl = session()
    sasl.on_handshake(1, "PLAIN", 0)
    reply = sasl.on_token(b"\0alice\0wrong", 0)
    assert (reply.error, reply.close) == (ErrorCode.SASL_AUTHENTICATION_FAILED, True)
    assert "alice" not in reply.message
    assert sasl.user is None
    for key in APIS:
        assert sasl.judge(key, 0) is Verdict.CLOSE


@pytest.mark.rule("SEC-2")
def test_a_success_has_an_empty_message():
    sasl = session()
    sasl.on_handshake(1, "PLAIN", 0)
    assert sasl.on_token(ALICE, 0).message == ""


@pytest.mark.rule("SEC-5")
@pytest.mark.parametrize(
    ("reauth_ms", "expires_ms", "lifetime_ms"),
    [(0, None, 0), (5000, None, 5000), (0, 4000, 3000), (2000, 4000, 2000), (9000, 4000, 3000)],
)
def test_a_session_lives_as_long_as_its_credential_and_the_setting_allow(
    reauth_ms, expires_ms, lifetime_ms
):
    sasl = session(reauth_ms, expires_ms)
    sasl.on_handshake(1, "ONE-STEP", 1000)
    assert sasl.on_token(b"alice", 1000).session_lifetime_ms == lifetime_ms


@pytest.mark.rule("SEC-5")
def test_after_expiry_anything_but_a_handshake_closes():
    sasl = logged_in(reauth_ms=5000)
    assert sasl.judge(ApiKey.METADATA, 4999) is Verdict.SERVE
    for key in [*OTHERS, ApiKey.SASL_AUTHENTICATE]:
        assert sasl.judge(key, 5000) is Verdict.CLOSE
    assert sasl.judge(ApiKey.SASL_HANDSHAKE, 5000) is Verdict.SERVE


@pytest.mark.rule("SEC-5")
def test_the_first_reauthentication_may_come_at_once_and_the_next_after_a_second():
    sasl = logged_in(reauth_ms=60_000)
    assert sasl.judge(ApiKey.SASL_HANDSHAKE, 1) is Verdict.SERVE
    sasl.on_handshake(1, "PLAIN", 1)
    assert sasl.on_token(ALICE, 2).error is ErrorCode.NONE
    assert sasl.judge(ApiKey.SASL_HANDSHAKE, 900) is Verdict.ILLEGAL
    assert sasl.judge(ApiKey.SASL_HANDSHAKE, 1001) is Verdict.SERVE


@pytest.mark.rule("SEC-5")
@pytest.mark.parametrize("token", [BOB, b"\0alice\0wrong"])
def test_reauthentication_as_another_or_with_a_wrong_password_fails(token):
    sasl = logged_in(reauth_ms=5000)
    sasl.on_handshake(1, "PLAIN", 10)
    reply = sasl.on_token(token, 20)
    assert (reply.error, reply.close) == (ErrorCode.SASL_AUTHENTICATION_FAILED, True)
    assert sasl.judge(ApiKey.METADATA, 20) is Verdict.CLOSE


@pytest.mark.rule("SEC-5")
def test_reauthentication_by_another_mechanism_closes_at_the_token():
    sasl = logged_in(reauth_ms=5000)
    assert sasl.on_handshake(1, "ONE-STEP", 10).error is ErrorCode.NONE
    assert sasl.on_token(b"alice", 20) is None
    assert sasl.judge(ApiKey.METADATA, 20) is Verdict.CLOSE


@pytest.mark.rule("SEC-5")
def test_reauthentication_by_an_unknown_mechanism_closes_at_the_handshake():
    sasl = logged_in(reauth_ms=5000)
    assert sasl.on_handshake(1, "GSSAPI", 10) is None
    assert sasl.judge(ApiKey.METADATA, 20) is Verdict.CLOSE
