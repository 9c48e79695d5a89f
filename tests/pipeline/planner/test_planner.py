"""Plans keep the rules, balance as far as the rules allow, and move little."""

from collections import Counter
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.client.reassignments import decode_plan, read_waves
from klamm.core.assignment import assign_replicas
from klamm.core.columns import padded, unpad
from klamm.errors import ConfigError
from klamm.pipeline import arrow
from klamm.pipeline.arrow import rows_to_arrow
from klamm.pipeline.output import output_folder
from klamm.pipeline.planner.frames import read_capacities, read_sizes, with_sizes
from klamm.pipeline.planner.output import summarise, write_plan
from klamm.pipeline.planner.planner import Capacity, Demands, ImpossibleError, Planned, make_plan
from klamm.pipeline.planner.waves import make_waves
from tests.pipeline.pages import Page, network_references


def table_of(replicas, sizes=None, topics=None) -> pa.Table:
    """Partitions that are led by their first replica."""
    count = len(replicas)
    rows = replicas if isinstance(replicas, np.ndarray) else padded(replicas)
    number = np.arange(count, dtype=np.int32)
    return pa.table(
        {
            "topic": topics if topics is not None else [f"topic-{each % 7}" for each in number],
            "partition": number,
            "replicas": rows_to_arrow(rows),
            "isr": rows_to_arrow(rows),
            "leader": rows[:, 0],
            "leader_epoch": number * 0,
            "min_isr": number * 0 + 1,
            "unclean": number < 0,
            "bytes": pa.nulls(count, pa.int64()) if sizes is None else pa.array(sizes, pa.int64()),
        },
        schema=arrow.PARTITIONS,
    )


def after(planned: Planned) -> list[list[int]]:
    return [unpad(row) for row in planned.after]


def loads(planned: Planned) -> np.ndarray:
    placed = planned.after[planned.after >= 0]
    return np.bincount(np.searchsorted(planned.brokers, placed), minlength=len(planned.brokers))


def leads(planned: Planned) -> np.ndarray:
    first = np.searchsorted(planned.brokers, planned.after[:, 0])
    return np.bincount(first, minlength=len(planned.brokers))


def is_within(load: np.ndarray, one: float = 1) -> bool:
    slack = max(0.02 * load.mean(), one)
    return bool((np.abs(load - load.mean()) <= slack + 1e-6).all())


RACKS = {broker: f"rack-{broker % 5}" for broker in range(20)}


def spread(partitions=2000, racks=RACKS, factor=3) -> np.ndarray:
    return assign_replicas(racks, partitions, factor, start=0, shift=0)


SIZES = np.random.default_rng(3).lognormal(15, 1, 2000).astype(np.int64)


@st.composite
def clusters(draw):
    """Small clusters in any state, with a demand."""
    brokers = draw(st.integers(3, 7))
    rack_count = draw(st.integers(0, 3))
    racks = {
        broker: f"r{draw(st.integers(0, rack_count - 1))}" if rack_count else None
        for broker in range(brokers)
    }
    replicas = draw(
        st.lists(
            st.permutations(range(brokers)).flatmap(
                lambda order: st.integers(1, 3).map(lambda n: order[:n])
            ),
            min_size=1,
            max_size=30,
        )
    )
    sizes = draw(
        st.none() | st.lists(st.integers(0, 1000), min_size=len(replicas), max_size=len(replicas))
    )
    demands = Demands(
        remove=draw(st.sampled_from([(), (), (0,)])),
        replication_factor=draw(st.sampled_from([None, None, 1, 2])),
        pin=draw(st.sampled_from([None, None, "topic-1"])),
        seed=draw(st.integers(0, 3)),
    )
    return table_of(replicas, sizes), racks, demands


@settings(max_examples=60)
@given(clusters())
def test_every_plan_keeps_the_rules(cluster):
    table, racks, demands = cluster
    try:
        planned = make_plan(table, racks, demands)
    except ImpossibleError:
        assert demands.pin or len(racks) - len(demands.remove) < 3
        return
    left = set(racks) - set(demands.remove)
    names = {racks[broker] for broker in left}
    topics, old = table["topic"].to_pylist(), table["replicas"].to_pylist()
    for topic, before, now in zip(topics, old, after(planned), strict=True):
        if demands.pin == topic:
            assert now == before
            continue
        assert len(set(now)) == len(now) == (demands.replication_factor or len(before))
        assert set(now) <= left
        if None not in names:
            assert len({racks[broker] for broker in now}) == min(len(now), len(names))
    assert planned.replicas_moved >= planned.bound.replicas
    assert after(make_plan(table, racks, demands)) == after(planned)


@settings(max_examples=60)
@given(clusters())
def test_without_racks_and_pins_every_plan_is_balanced(cluster):
    table, racks, demands = cluster
    demands = Demands(remove=demands.remove, replication_factor=2, seed=demands.seed)
    planned = make_plan(table, dict.fromkeys(racks), demands)
    assert is_within(loads(planned))
    assert is_within(leads(planned))


@pytest.mark.parametrize("sizes", [None, SIZES])
@pytest.mark.parametrize(
    "demands",
    [
        Demands(),
        Demands(add=(20, 21), racks={20: "rack-0", 21: "rack-1"}),
        Demands(remove=(3, 4)),
        Demands(replication_factor=2),
        Demands(replication_factor=4),
        Demands(add=(20,), remove=(0,), racks={20: "rack-0"}),
    ],
    ids=["nothing", "add", "remove", "fewer", "more", "replace"],
)
def test_plans_are_balanced_and_move_little_more_than_they_must(demands, sizes):
    planned = make_plan(table_of(spread(), sizes), RACKS, demands)
    assert is_within(loads(planned))
    assert is_within(leads(planned))
    if sizes is None:
        assert planned.replicas_moved <= 1.1 * planned.bound.replicas
        return
    per_broker = np.zeros(len(planned.brokers))
    for row, size in zip(after(planned), sizes.tolist(), strict=True):
        per_broker[np.searchsorted(planned.brokers, row)] += size
    assert is_within(per_broker, one=float(sizes.max()))
    assert planned.bound.bytes <= planned.bytes_moved <= 1.1 * planned.bound.bytes + sizes.max()


def test_a_balanced_cluster_is_left_alone():
    planned = make_plan(table_of(spread()), RACKS)
    assert planned.replicas_moved == 0
    assert planned.bound.replicas == 0


def test_racks_are_repaired():
    careless = spread(racks=dict.fromkeys(RACKS))
    planned = make_plan(table_of(careless), RACKS)
    assert {len({RACKS[b] for b in row}) for row in after(planned)} == {3}
    assert planned.replicas_moved <= 1.1 * planned.bound.replicas


def test_leaders_are_evened_out_without_moving_data():
    everything_on_one = np.sort(spread(), axis=1)
    planned = make_plan(table_of(everything_on_one), RACKS)
    assert planned.replicas_moved == 0
    assert is_within(leads(planned))


def test_capacities_are_kept():
    limits = {0: Capacity(replicas=100), 1: Capacity(replicas=250)}
    planned = make_plan(table_of(spread()), RACKS, Demands(capacities=limits))
    load = loads(planned)
    assert load[0] <= 100
    assert load[1] <= 250
    assert load.sum() == 6000


def test_byte_capacities_are_kept():
    table = table_of(spread(), SIZES)
    limit = 0.5 * 3 * SIZES.sum() / 20
    planned = make_plan(table, RACKS, Demands(capacities={7: Capacity(bytes=limit)}))
    held = sum(s for row, s in zip(after(planned), SIZES.tolist(), strict=True) if 7 in row)
    assert held <= limit


def test_partitions_on_absent_brokers_stay_as_they_are():
    planned = make_plan(table_of([[1, 9], [1, 2]]), {1: None, 2: None, 3: None})
    assert after(planned)[0] == [1, 9]
    assert "not alive: 9" in planned.notes[-1]
    moved = make_plan(table_of([[1, 9], [1, 2]]), {1: None, 2: None, 3: None}, Demands(remove=[9]))
    assert 9 not in after(moved)[0]


def test_shares_that_racks_keep_from_the_mean_are_told():
    lopsided = {0: "a", 1: "b", 2: "b", 3: "b", 4: "c", 5: "c"}
    planned = make_plan(table_of(spread(300, lopsided)), lopsided)
    (note,) = [note for note in planned.notes if note.startswith("The replicas cannot")]
    assert "from 100 (broker 1) to 300 (broker 0), where the mean is 150" in note
    assert planned.notes == make_plan(table_of(spread(300, lopsided)), lopsided).notes


def test_a_plan_that_stops_short_of_balance_says_so_and_why():
    # Nothing but topic-0 may move, and that is a seventh of it all.
    crowded = [[1, 2] for _ in range(70)]
    brokers = dict.fromkeys((1, 2, 3, 4))
    planned = make_plan(table_of(crowded), brokers, Demands(pin="topic-[1-6]"))
    (note,) = [note for note in planned.notes if note.startswith("The replicas are not balanced")]
    assert "broker 1 holds" in note
    assert "its share is 35" in note
    assert "What has to stay where it is (pinned, or on brokers not alive) is more already" in note


def test_one_partition_larger_than_a_share_is_not_called_unbalanced():
    planned = make_plan(table_of([[1], [2], [2], [2]], [1000, 1, 1, 1]), {1: None, 2: None})
    assert not [note for note in planned.notes if "bytes are not balanced" in note]


def test_unknown_sizes_count_with_the_mean():
    planned = make_plan(table_of([[1], [2], [1]], [10, None, 30]), {1: None, 2: None})
    assert planned.weight.tolist() == [10, 20, 30]
    assert "unknown size" in planned.notes[0]


@pytest.mark.parametrize(
    ("demands", "message"),
    [
        (Demands(remove=(1, 2, 3)), "No broker is left"),
        (Demands(replication_factor=5), "5 replicas need 5 brokers, and 3 would be there: add 2"),
        (
            Demands(remove=(1, 2), replication_factor=2),
            "2 replicas need 2 brokers, and 1 would be there: keep 1 of the brokers to be removed",
        ),
        (Demands(add=(1,), remove=(1,)), "cannot be both added and removed"),
        (Demands(remove=(1,), pin="topic-0"), "pinned topics .* unpin topic-0, or keep"),
        (Demands(add=(9,)), "some brokers have none: 9.* --rack 9=NAME"),
        (Demands(pin="("), "is not a regular expression"),
        (
            Demands(capacities={b: Capacity(replicas=1) for b in (1, 2, 3)}),
            "4 replicas do not fit into capacities of 3: raise them by 1",
        ),
    ],
)
def test_impossible_demands_get_the_reason_and_what_would_help(demands, message):
    with pytest.raises(ConfigError, match=message):
        make_plan(table_of([[1, 2], [2, 1]]), {1: "a", 2: "b", 3: "c"}, demands)


def test_waves_hold_all_moves_and_keep_the_limit():
    demands = Demands(add=(20, 21), racks={20: "rack-0", 21: "rack-1"})
    planned = make_plan(table_of(spread()), RACKS, demands)
    waves = make_waves(planned, limit=25)
    assert sorted(np.concatenate(waves).tolist()) == planned.changed.tolist()
    for wave in waves:
        touched: Counter = Counter()
        for row in wave:
            new = planned.after[row][planned.added[row]].tolist()
            touched.update(new)
            touched.update([int(planned.leader[row])] * len(new))
        assert max(touched.values(), default=0) <= 25


def test_the_files_are_what_kafkas_tool_takes(spark, tmp_path: Path):
    table = table_of(spread(), SIZES)
    planned = make_plan(table, RACKS, Demands(remove=(3,)))
    waves = make_waves(planned, limit=50)
    stale = tmp_path / "waves" / "999.json"
    stale.parent.mkdir()
    stale.write_text("{}")
    write_plan(
        output_folder(spark, str(tmp_path / "plan.json")), table, planned, waves, throttle=1_000_000
    )
    whole = decode_plan((tmp_path / "plan.json").read_bytes(), "plan")
    assert len(whole) == len(planned.changed)
    in_waves = [plan for _, plan in read_waves(tmp_path / "waves")]
    assert {name: row for plan in in_waves for name, row in plan.items()} == whole
    summary = orjson.loads((tmp_path / "summary.json").read_bytes())
    assert summary == summarise(planned, len(waves))
    assert summary["balance"]["before"]["brokers"]["3"]["replicas"] == 300
    assert summary["balance"]["after"]["replicas"]["min"] > 300
    page = (tmp_path / "summary.html").read_text()
    assert "Reassignment plan" in page
    assert "Wave 001: " in page
    assert "klamm reassign execute waves --throttle 1000000" in page
    assert "at 1 MB/s for each broker" in page
    assert planned.bound.reason in Page(page).text
    assert network_references(page) == []


def test_a_capacities_file_is_read_or_refused(tmp_path: Path):
    path = tmp_path / "capacities.json"
    path.write_text('{"1": {"bytes": 5}, "2": {"replicas": 7}}')
    assert read_capacities(path) == {1: Capacity(bytes=5), 2: Capacity(replicas=7)}
    for wrong in ('{"x": {}}', '{"1": {"disks": 3}}', "[1]", '{"1": {"bytes": -1}}'):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match="is expected to be like"):
            read_capacities(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        read_capacities(path)


def test_sizes_or_rates_may_come_from_a_file(tmp_path: Path):
    path = tmp_path / "rates.json"
    path.write_text('{"topic-1": 5e6, "topic-1-8": 7, "topic-2": 1}')
    table = with_sizes(table_of(spread(10)), read_sizes(path))
    found = dict(zip(table["partition"].to_pylist(), table["bytes"].to_pylist(), strict=True))
    assert (found[1], found[8], found[2], found[9], found[0]) == (5_000_000, 7, 1, 1, None)
    path.write_text('{"elsewhere": 1}')
    with pytest.raises(ConfigError, match="None of the sizes"):
        with_sizes(table_of(spread(10)), read_sizes(path))
    path.write_text('{"topic-1": "much"}')
    with pytest.raises(ConfigError, match="is expected to be like"):
        read_sizes(path)


def test_a_cluster_without_partitions_needs_no_plan():
    planned = make_plan(table_of(np.empty((0, 3), np.int32), topics=[]), RACKS)
    assert planned.replicas_moved == 0
    assert len(planned.changed) == 0
    assert make_waves(planned, limit=5) == []
    assert summarise(planned, 0)["balance"]["after"]["replicas"]["max"] == 0
