"""The server's half of PLAIN, SCRAM and OAUTHBEARER, against the client's half."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.broker.security.mechanisms import (
    Authenticated,
    AuthenticationFailed,
    Challenge,
    OAuthBearerServer,
    PlainServer,
    ScramServer,
    TokenClaims,
    TokenRefused,
)
from klamm.net.sasl import LoginError, OAuthBearerLogin, PlainLogin, ScramLogin
from klamm.net.scram import (
    ScramCredential,
    ScramMechanism,
    credential_of,
    format_credential,
    parse_credential,
    salted_password,
)

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
SALT = b"klamm-example-salt"


def credential(mechanism: ScramMechanism, password: str, iterations: int = 4096):
    salted = salted_password(mechanism, password, SALT, iterations)
    return credential_of(mechanism, salted, SALT, iterations)


def scram_server(mechanism=ScramMechanism.SCRAM_SHA_256, **users: ScramCredential):
    return ScramServer(mechanism, users.get, nonce="server-part", decoy_key=b"decoy")


def log_in(client: ScramLogin, server: ScramServer) -> Authenticated:
    first = server.on_token(client.on_challenge(b""))
    assert isinstance(first, Challenge)
    done = server.on_token(client.on_challenge(first.token))
    assert isinstance(done, Authenticated)
    client.check_complete(done.token)
    return done


@pytest.mark.rule("SEC-3")
@pytest.mark.parametrize("authzid", ["", "alice"])
def test_plain_takes_a_user_with_the_right_password(authzid):
    token = f"{authzid}\0alice\0alice-secret".encode()
    assert PlainServer(USERS).on_token(token) == Authenticated("alice", b"")


@pytest.mark.rule("SEC-2", "SEC-3")
@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0alice\0",
        b"\0\0alice-secret",
        b"\0alice\0wrong",
        b"\0alice\0alice-secret\0",
        b"\0alice\0alice-secre",
        b"\0carol\0alice-secret",
        b"\0carol\0\0",
        b"bob\0alice\0alice-secret",
        b"\0alice\0bob-secret",
        b"\xff\0alice\0alice-secret",
    ],
)
def test_plain_refuses_everything_else_with_one_message(token):
    with pytest.raises(AuthenticationFailed) as refused:
        PlainServer(USERS).on_token(token)
    assert str(refused.value) == PlainServer.MESSAGE


def test_plain_speaks_with_its_client():
    server = PlainServer(USERS)
    assert server.on_token(PlainLogin("bob", "bob-secret").on_challenge(b"")).user == "bob"


@pytest.mark.rule("SEC-4")
def test_the_stored_form_is_kafkas():
    text = (
        "salt=a2xhbW0tZXhhbXBsZS1zYWx0,stored_key=aZJ1IMqox1cvlrJs4RSxj97QvvEAUNDew/x1b7X8bF8=,"
        "server_key=OENOzsCJvOCL6IcascNbr2BYzKgbRD6HPyDP+0QBBbE=,iterations=4096"
    )
    made = credential(ScramMechanism.SCRAM_SHA_256, "alice-secret")
    assert format_credential(made) == text
    assert parse_credential(text) == made
    assert "aZJ1" not in repr(made)


@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize("mechanism", ScramMechanism)
@given(user=st.text(min_size=1, max_size=10).filter(lambda each: "\0" not in each))
@settings(max_examples=15, deadline=None)
def test_scram_takes_a_user_with_the_right_password(mechanism, user):
    server = ScramServer(
        mechanism,
        {user: credential(mechanism, "secret")}.get,
        nonce="server-part",
        decoy_key=b"decoy",
    )
    done = log_in(ScramLogin(mechanism, user, "secret", nonce="abc"), server)
    assert done.user == user


@pytest.mark.rule("SEC-2", "SEC-4")
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("carol", "alice-secret")])
def test_scram_fails_at_the_end_for_a_wrong_password_and_for_an_unknown_user(user, password):
    server = scram_server(alice=credential(ScramMechanism.SCRAM_SHA_256, "alice-secret"))
    with pytest.raises(AuthenticationFailed, match="invalid credentials with SASL mechanism"):
        log_in(ScramLogin(ScramMechanism.SCRAM_SHA_256, user, password, nonce="abc"), server)


@pytest.mark.rule("SEC-4")
def test_an_unknown_user_gets_the_same_salt_every_time():
    firsts = {scram_server().on_token(b"n,,n=carol,r=abc").token for _ in range(3)}
    assert len(firsts) == 1
    assert scram_server().on_token(b"n,,n=dave,r=abc").token not in firsts


@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize(
    "first",
    [
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,b=alice,n=alice,r=abc",
        b"n,,r=abc,n=alice",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=abc",
        b"n,,n=alice",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=alice,r=abc,tokenauth=true",
        b"n,a=,n=alice,r=abc",
        b"n,,n=alice,r=a b",
        b"n,,n=alice,r=abc\n",
        b"n,,n=alice,r=abc,",
        b"n,,n=alice,r=abc,more",
        b"\xff",
        b"",
    ],
)
def test_scram_refuses_a_first_message_it_does_not_accept(first):
    server = scram_server(alice=credential(ScramMechanism.SCRAM_SHA_256, "alice-secret"))
    with pytest.raises(AuthenticationFailed):
        server.on_token(first)


@pytest.mark.rule("SEC-4")
def test_few_iterations_are_refused_at_login():
    weak = credential(ScramMechanism.SCRAM_SHA_256, "alice-secret", iterations=4095)
    with pytest.raises(AuthenticationFailed):
        scram_server(alice=weak).on_token(b"n,,n=alice,r=abc")


def tampered_final(change) -> bytes:
    """The final message of a right login, changed."""
    client = ScramLogin(ScramMechanism.SCRAM_SHA_256, "alice", "alice-secret", nonce="abc")
    server = scram_server(alice=credential(ScramMechanism.SCRAM_SHA_256, "alice-secret"))
    final = client.on_challenge(server.on_token(client.on_challenge(b"")).token)
    return change(final), server


@pytest.mark.rule("SEC-4")
@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"r=abcserver-part", b"r=xserver-part"),
        lambda final: final.replace(b"r=abcserver-part", b"r=evil-abcserver-part"),
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final[:-4] + b"AAA=",
        lambda final: final.partition(b",p=")[0] + b",p=" + base64.b64encode(b"short"),
        lambda final: final.partition(b",p=")[0],
        lambda final: b"",
    ],
)
def test_scram_refuses_a_final_message_that_was_changed(change):
    final, server = tampered_final(change)
    with pytest.raises(AuthenticationFailed):
        server.on_token(final)


def test_a_client_refuses_a_server_that_does_not_know_the_user():
    client = ScramLogin(ScramMechanism.SCRAM_SHA_256, "alice", "alice-secret", nonce="abc")
    client.on_challenge(b"")
    client.on_challenge(b"r=abcx,s=c2FsdA==,i=4096")
    with pytest.raises(LoginError):
        client.check_complete(b"v=" + base64.b64encode(b"x" * 32))


@pytest.mark.parametrize(
    "challenge",
    [b"r=abc,s=c2FsdA==,i=4096", b"r=zzz,s=c2FsdA==,i=4096", b"r=abcx,s=c2FsdA==,i=1", b"junk"],
)
def test_a_client_refuses_a_first_message_that_weakens_the_exchange(challenge):
    client = ScramLogin(ScramMechanism.SCRAM_SHA_256, "alice", "alice-secret", nonce="abc")
    client.on_challenge(b"")
    with pytest.raises(LoginError):
        client.on_challenge(challenge)


def believe_good(token: str) -> TokenClaims:
    if token != "good":
        raise TokenRefused("it is not good")
    return TokenClaims("alice", 5000)


@pytest.mark.rule("SEC-14")
def test_a_bearer_token_that_is_believed_logs_in():
    done = OAuthBearerServer(believe_good).on_token(OAuthBearerLogin("good").on_challenge(b""))
    assert done == Authenticated("alice", b"", 5000)


@pytest.mark.rule("SEC-14")
@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer good\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer good",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01\x01",
        b"",
    ],
)
def test_a_message_without_a_bearer_token_fails_at_once(message):
    with pytest.raises(AuthenticationFailed, match="invalid credentials"):
        OAuthBearerServer(believe_good).on_token(message)


@pytest.mark.rule("SEC-14")
def test_a_refused_bearer_token_is_told_as_json_before_it_fails():
    server = OAuthBearerServer(believe_good)
    told = server.on_token(b"n,,\x01auth=Bearer bad\x01\x01")
    assert told == Challenge(b'{"status":"invalid_token"}')
    with pytest.raises(AuthenticationFailed):
        server.on_token(b"\x01")


@pytest.mark.rule("SEC-14")
def test_after_a_refusal_a_good_token_does_not_help():
    server = OAuthBearerServer(believe_good)
    server.on_token(b"n,,\x01auth=Bearer bad\x01\x01")
    with pytest.raises(AuthenticationFailed):
        server.on_token(b"n,,\x01auth=Bearer good\x01\x01")


@pytest.mark.rule("SEC-14")
def test_a_token_does_not_log_in_somebody_else():
    with pytest.raises(AuthenticationFailed):
        OAuthBearerServer(believe_good).on_token(b"n,a=bob,\x01auth=Bearer good\x01\x01")
