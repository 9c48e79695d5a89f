"""Every change: refused where the console only looks, confirmed, and kept with who asked."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette

from klamm.console.journal import Journal
from klamm.console.server import STATIC, OtherRoutes
from klamm.errors import ConfigError
from tests.console.asgi import Answer, ask

#: address: the page that asks before it is done, and words of what it says it will do.
CONFIRMED = {
    "/api/topics/create": ("topics.js", "Replicas are spread over brokers and racks"),
    "/api/topics/delete": ("topics.js", "are gone for good"),
    "/api/topics/partitions": ("topics.js", "Keys go to other partitions"),
    "/api/settings": ("topics.js", "It takes effect at once"),
    "/api/topics/{name}/records": ("records.js", "Consumers get it like any other record"),
    "/api/groups/reset": ("groups.js", "Look at the dry run first"),
    "/api/groups/delete": ("groups.js", "Its committed offsets are gone for good"),
    "/api/elections": ("moves.js", "get another leader; clients follow"),
    "/api/moves": ("moves.js", "The history says that you did it"),
    "/api/moves/{what}": ("moves.js", "go back to the replicas they had"),
    "/api/lessons": ("lessons.js", "data.beginnings[beginning.id]"),
    "/api/lessons/act": ("lessons.js", "data.verbs[asking.verb]"),
    "/api/users/add": ("access.js", "The password is salted and hashed here"),
    "/api/users/remove": ("access.js", "can no longer log in"),
    "/api/acls/add": ("access.js", "comes before"),
    "/api/acls/remove": ("access.js", "Remove an ACL"),
    "/api/quotas/set": ("access.js", "Set a quota"),
    "/api/quotas/remove": ("access.js", "Remove a quota"),
    "/api/transactions/abort": ("transactions.js", "abort marker"),
}
#: What is asked with POST and changes nothing.
QUESTIONS = {"/api/whatif", "/api/plans", "/api/elections/preview", "/api/groups/reset/preview"}
POSTED = {
    route.path: route for route in OtherRoutes().load().routes if "POST" in (route.methods or ())
}


class _Offline:
    """A session whose cluster cannot be asked, so that every change is refused in the end."""

    def __init__(self, folder: Path, *, allow_changes: bool) -> None:
        self.settings = SimpleNamespace(allow_changes=allow_changes)
        self.journal = Journal(folder / "actions.jsonl", "alice")
        self.background = SimpleNamespace(journal=self.journal, mover=None, lessons=None)

    def online(self) -> Any:
        raise ConfigError("nobody is there")


def change(session: _Offline, path: str, body: Any) -> Answer:
    app = Starlette()
    app.router.default = OtherRoutes()
    app.state.session = session
    return ask(app, path, method="POST", body=json.dumps(body).encode())


def test_every_change_is_in_the_table_and_is_confirmed_with_what_it_does():
    assert set(POSTED) == set(CONFIRMED) | QUESTIONS
    for page, words in CONFIRMED.values():
        text = (STATIC / page).read_text(encoding="utf-8")
        assert "${Confirm}" in text
        assert words in text, (page, words)


@pytest.mark.parametrize("path", CONFIRMED)
def test_a_console_that_only_looks_refuses_a_change(path: str, tmp_path: Path):
    session = _Offline(tmp_path, allow_changes=False)
    response = change(session, path.format(name="orders", what="pause"), {})
    assert response.status == 403
    assert "--allow-changes" in json.loads(response.body)["message"]
    assert session.journal.newest(5) == []


@pytest.mark.parametrize("path", CONFIRMED)
def test_a_change_is_kept_with_who_asked_for_it_also_when_it_is_refused(path: str, tmp_path: Path):
    session = _Offline(tmp_path, allow_changes=True)
    body = {"topic": "orders", "password": "planted"}
    response = change(session, path.format(name="orders", what="faster"), body)
    assert 400 <= response.status < 500, response.body
    (kept,) = session.journal.newest(5)
    assert kept["user"] == "alice"
    assert f"/api/{kept['action']}" == path.format(name="orders", what="faster")
    assert kept["error"]
    assert "planted" not in json.dumps(kept)


@pytest.mark.parametrize("path", sorted(QUESTIONS))
def test_a_question_is_not_kept(path: str, tmp_path: Path):
    session = _Offline(tmp_path, allow_changes=True)
    assert change(session, path, {}).status == 400
    assert session.journal.newest(5) == []
