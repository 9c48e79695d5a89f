from pathlib import Path

from klamm.console.journal import Journal


def test_actions_are_kept_with_who_did_them(tmp_path: Path):
    journal = Journal(tmp_path / "state" / "actions.jsonl", "alice")
    assert journal.newest(5) == []
    journal.note("topics/create", {"topic": "orders"}, None)
    journal.note("topics/delete", {"topic": "nowhere"}, "there is no topic nowhere")
    again = Journal(tmp_path / "state" / "actions.jsonl", "bob")
    again.note("topics/orders/records", {"value": "secret", "partition": 1}, None)
    third, second, first = again.newest(5)
    assert (first["user"], first["action"], first["with"]) == (
        "alice",
        "topics/create",
        {"topic": "orders"},
    )
    assert second["error"] == "there is no topic nowhere"
    assert (third["user"], third["with"]) == ("bob", {"partition": 1})
    assert len(again.newest(2)) == 2


def test_a_password_is_not_written_down(tmp_path: Path):
    file = tmp_path / "actions.jsonl"
    Journal(file, "alice").note("users/add", {"user": "bob", "password": "hunter2"}, None)
    assert "hunter2" not in file.read_text()
