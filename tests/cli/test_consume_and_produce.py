"""`klamm produce`, `consume` and `groups`, on klamm and on Apache Kafka."""

import json
import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import AnyCluster
from tests.support.command_line import Klamm, interruptible, run_process


@pytest.fixture
def made(klamm: Klamm, topic: str) -> str:
    """A topic of two partitions that exists."""
    klamm("topics", "create", topic, "--replica-assignment", "1:2,2:3").ok()
    return topic


def lines(count: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(count))


def test_lines_become_records_and_lines_again(klamm: Klamm, made: str):
    result = klamm("produce", made, stdin=lines(100)).ok()
    assert (result.out, result.err) == ("", f"Wrote 100 records to {made}.\n")
    out = klamm("consume", made, "--exit").ok().out
    assert sorted(map(int, out.split())) == list(range(100))
    assert klamm("consume", made, "--count", "7").ok().out.count("\n") == 7
    assert klamm("consume", made, "--offset", "end", "--exit").ok().out == ""


def test_keys_headers_partitions_and_formats(klamm: Klamm, made: str):
    line = b'alice:{"total": 3}\n'
    keys = ("--key-delimiter", ":", "--header", "source=shop", "--header", "try=1")
    klamm("produce", made, *keys, "--partition", "1", stdin=line).ok()
    klamm("produce", made, "--partition", "1", "--null", "--key", "bob", stdin=b"\n").ok()
    form = "%t[%p]@%o %k:%s %h %K/%S%%\\n"
    shown = klamm("consume", made, "--partition", "1", "--exit", "--format", form).ok().out
    assert shown.splitlines() == [
        f'{made}[1]@0 alice:{{"total": 3}} source=shop,try=1 5/12%',
        f"{made}[1]@1 bob:  3/-1%",
    ]
    (first, second) = map(json.loads, klamm("consume", made, "-e", "--json").ok().out.splitlines())
    assert first["key"] == "alice"
    assert first["headers"] == [["source", "shop"], ["try", "1"]]
    assert second["value"] is None
    assert first["timestamp"] > 1_600_000_000_000


def test_what_was_consumed_as_json_can_be_produced_again(klamm: Klamm, made: str):
    record = {"key": "k", "value": "v", "headers": [["h", "x"]], "partition": 1, "timestamp": 12345}
    klamm("produce", made, "--json", stdin=json.dumps(record).encode()).ok()
    copy = klamm("consume", made, "--exit", "--json").ok().out
    assert record.items() <= json.loads(copy).items()
    klamm("produce", made, "--json", stdin=copy.encode()).ok()
    assert klamm("consume", made, "-p", "1", "-e").ok().out == "v\nv\n"
    klamm("produce", made, "--json", stdin=b"nonsense\n").failed("Line 1 is not a record")


def test_reading_begins_where_it_is_told_to(klamm: Klamm, made: str):
    for number in range(4):
        record = {"value": str(number), "partition": 0, "timestamp": 1_700_000_000_000 + number}
        klamm("produce", made, "--json", stdin=json.dumps(record).encode()).ok()

    def read(where: str) -> list[int]:
        out = klamm("consume", made, "-p", "0", "--offset", where, "--exit").ok().out
        return [int(line) for line in out.split()]

    assert read("beginning") == [0, 1, 2, 3]
    assert read("2") == [2, 3]
    assert read("-1") == [3]
    assert read("@1700000000001") == [1, 2, 3]
    assert read("@2030-01-01T00:00:00Z") == []
    assert klamm("consume", made, "--offset", "soon").code == 2
    klamm("consume", made, "--partition", "9").failed("partitions 0 to 1")


def test_a_group_is_described_reset_and_deleted(klamm: Klamm, made: str):
    group = f"{made}-readers"
    klamm("produce", made, "--partition", "0", stdin=lines(10)).ok()
    klamm("produce", made, "--partition", "1", stdin=lines(4)).ok()
    klamm("consume", made, "--group", group, "--exit").ok()
    assert klamm("consume", made, "--group", group, "--exit").ok().out == ""

    (listed,) = [g for g in klamm("groups", "list", "--json").json() if g["group"] == group]
    assert listed["state"] == "Empty"
    shown = klamm("groups", "describe", group, "--json").json()
    assert [(p["partition"], p["offset"], p["end"], p["lag"]) for p in shown["positions"]] == [
        (0, 10, 10, 0),
        (1, 4, 4, 0),
    ]

    reset = ("groups", "reset-offsets", group, "--json")
    back = klamm(*reset, "--topic", f"{made}:0", "--to-earliest").json()
    assert [(r["partition"], r["offset"], r["new_offset"]) for r in back] == [(0, 10, 0)]
    assert klamm("groups", "describe", group, "--json").json() == shown, "only shown, not done"
    klamm(*reset, "--topic", f"{made}:0", "--shift-by", "-3", "--execute").ok()
    klamm(*reset, "--topic", f"{made}:1", "--to-offset", "99", "--execute").ok()
    positions = klamm("groups", "describe", group, "--json").json()["positions"]
    assert [p["offset"] for p in positions] == [7, 4], "an offset beyond the end is the end"
    klamm(*reset, "--to-datetime", "2001-01-01T00:00:00Z", "--execute").ok()
    positions = klamm("groups", "describe", group, "--json").json()["positions"]
    assert [p["lag"] for p in positions] == [10, 4]

    klamm("groups", "describe", group[:-1]).failed("GROUP_ID_NOT_FOUND", f"did you mean {group}?")
    klamm("groups", "delete", group).ok()
    klamm("groups", "delete", group).failed("GROUP_ID_NOT_FOUND")
    assert klamm("groups", "reset-offsets", group, "--to-earliest", "--to-latest").code == 2


def test_a_group_with_members_is_left_alone(klamm: Klamm, made: str, cluster: AnyCluster):
    group = f"{made}-readers"
    klamm("produce", made, stdin=lines(3)).ok()
    reader = subprocess.Popen(
        interruptible(
            *(sys.executable, "-m", "klamm", "consume", made, "--group", group),
            *("--bootstrap-server", cluster.bootstrap_servers),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert reader.stdout is not None
        reader.stdout.readline()
        shown = klamm("groups", "describe", group, "--json").json()
        assert shown["state"] == "Stable"
        (member,) = shown["members"]
        assert sorted(map(tuple, member["assignment"])) == [(made, 0), (made, 1)]
        klamm("groups", "delete", group).failed("NON_EMPTY_GROUP")
        reset = ("groups", "reset-offsets", group, "--topic", made, "--to-earliest")
        klamm(*reset, "--execute").failed("NON_EMPTY_GROUP")
        reader.send_signal(signal.SIGINT)
        _, err = reader.communicate(timeout=30)
        assert (reader.returncode, err) == (0, b""), "Ctrl-C is the way to end it"
    finally:
        reader.kill()
        reader.communicate()


def test_pipes_are_what_a_shell_would_make_of_them(cluster: AnyCluster, klamm: Klamm, made: str):
    environment = {"KLAMM_BOOTSTRAP_SERVER": cluster.bootstrap_servers}
    wrote = run_process("produce", made, stdin=lines(5), environment=environment)
    assert wrote.code == 0
    assert wrote.out == ""
    read = run_process("consume", made, "--exit", environment=environment)
    assert read.code == 0
    assert read.err == ""
    assert sorted(read.out.split()) == ["0", "1", "2", "3", "4"]
