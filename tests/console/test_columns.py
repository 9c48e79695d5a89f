import json
import struct

from hypothesis import given
from hypothesis import strategies as st

from klamm.console.columns import encode_columns
from klamm.core.columns import unpad
from tests.console.clusters import make_columns

IDS = st.integers(0, 400)
STATE = st.lists(IDS, min_size=1, max_size=4, unique=True).flatmap(
    lambda replicas: st.tuples(
        st.sampled_from([-1, *replicas]),
        st.just(replicas),
        st.lists(st.sampled_from(replicas), unique=True),
    )
)
PARTITIONS = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), STATE)


def decode(data: bytes) -> dict[str, tuple[int, list[int], list[int]]]:
    """What the browser makes of it."""
    (size,) = struct.unpack_from("<i", data)
    head = json.loads(data[4 : 4 + size])
    cell = "B" if head["cell_bytes"] == 1 else "H"
    nobody = 255 if cell == "B" else 65_535
    rows = sum(head["counts"])
    ids = [each["id"] for each in head["brokers"]] + [None]
    cells = list(
        struct.unpack_from(f"<{(len(data) - 4 - size) // head['cell_bytes']}{cell}", data, 4 + size)
    )
    named = [None if each == nobody else ids[each] for each in cells]
    leader, rest = named[:rows], named[rows:]
    w, v = head["replicas_width"], head["isr_width"]
    replicas, isr = rest[: rows * w], rest[rows * w :]
    names = []
    for topic, count in zip(head["topics"], head["counts"], strict=True):
        at = len(names)
        numbers = head["partition"][at : at + count] if head["partition"] else range(count)
        names += [f"{topic}-{number}" for number in numbers]
    return {
        name: (
            -1 if leader[n] is None else leader[n],
            [each for each in replicas[n * w : n * w + w] if each is not None],
            [each for each in isr[n * v : n * v + v] if each is not None],
        )
        for n, name in enumerate(names)
    }


@given(PARTITIONS, st.dictionaries(IDS, st.sampled_from([None, "a", "b"]), max_size=300))
def test_what_travels_is_what_was_there(partitions, brokers):
    columns = make_columns(partitions, brokers)
    assert decode(encode_columns(columns, {})) == {
        f"{topic}-{number}": state for (topic, number), state in partitions.items()
    }
    assert (4 + struct.unpack_from("<i", encode_columns(columns, {}))[0]) % 4 == 0


def test_brokers_that_are_only_named_are_down():
    columns = make_columns({("a", 0): (1, [1, 7], [1])}, {1: None, 2: None})
    assert {each.id: each.live for each in columns.brokers} == {1: True, 2: True, 7: False}


def test_a_row_is_found_by_its_name():
    states = {("a", 0): (1, [1], [1]), ("b", 3): (2, [2, 1], [2])}
    columns = make_columns(states, {1: None, 2: None})
    assert unpad(columns.replicas[columns.row_of["b", 3]]) == [2, 1]
    assert columns.name(1) == "b-3"
