import pytest
from starlette.responses import PlainTextResponse

from klamm.console.safety import ConsoleGuard, content_security_policy
from tests.console.asgi import Answer, ask

TOKEN = "the-token"
GUARD = ConsoleGuard(
    PlainTextResponse("let through"), TOKEN, 8080, content_security_policy(["inline()"])
)


def guarded(path: str = "/api/cluster", **options) -> Answer:
    return ask(GUARD, path, **options)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"/?token={TOKEN}", {}),
        ("/api/cluster", {"authorization": f"Bearer {TOKEN}"}),
        ("/api/cluster", {"cookie": f"other=1; klamm-console-8080={TOKEN}"}),
    ],
)
def test_the_token_lets_in_by_link_bearer_and_cookie(path, headers):
    assert guarded(path, headers=headers).status == 200


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/static/main.js", {}),
        ("/?token=another", {}),
        ("/api/cluster", {"authorization": "Bearer another"}),
        ("/api/cluster", {"authorization": "Bearer "}),
        ("/api/cluster", {"cookie": f"klamm-console-9090={TOKEN}"}),
        (f"/?token={TOKEN}", {"authorization": "Bearer another"}),
    ],
)
def test_without_the_token_everything_is_forbidden(path, headers):
    assert guarded(path, headers=headers).status == 403


def test_the_link_leaves_a_cookie_that_scripts_cannot_read():
    cookie = guarded(f"/?token={TOKEN}").headers["set-cookie"]
    assert cookie.startswith(f"klamm-console-8080={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


def test_a_refused_request_leaves_no_cookie():
    assert "set-cookie" not in guarded("/?token=another").headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", ""]
)
def test_another_name_for_this_machine_is_refused(host):
    response = guarded(f"/?token={TOKEN}", headers={"host": host})
    assert response.status == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:9000", "[::1]:8080", "LOCALHOST"])
def test_the_names_of_loopback_are_let_in(host):
    assert guarded(f"/?token={TOKEN}", headers={"host": host}).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999"])
def test_pages_of_another_origin_are_refused(origin):
    headers = {"origin": origin, "authorization": f"Bearer {TOKEN}"}
    assert guarded(headers=headers).status == 403


def test_a_change_needs_a_header_that_a_foreign_page_cannot_send():
    cookie = {"cookie": f"klamm-console-8080={TOKEN}"}
    path = "/api/topics/create"
    assert guarded(path, method="POST", headers=cookie).status == 403
    assert guarded(path, method="POST", headers=cookie | {"x-klamm-console": "1"}).status == 200
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert guarded(path, method="POST", headers=bearer).status == 200


def test_a_question_with_a_body_needs_only_the_token():
    assert guarded(f"/api/whatif?token={TOKEN}", method="POST").status == 200


def test_every_response_forbids_what_comes_from_elsewhere():
    for path in ("/", f"/?token={TOKEN}"):
        headers = guarded(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
