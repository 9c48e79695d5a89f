"""The commands that `make lakehouse-test` runs are those of the page."""

from tools.lakehouse_test import PAGE, first_commands


def test_the_commands_are_found_whole_and_in_their_order():
    first, second = first_commands(PAGE.read_text())
    assert first == ["pip install 'klamm[ingest]'", "klamm up"]
    assert [command.split()[:2] for command in second] == [
        ["klamm", "topics"],
        ["for", "n"],
        ["klamm", "ingest"],
        ["python", "-c"],
    ]
    assert second[-1].endswith("order by 1'))\"")
