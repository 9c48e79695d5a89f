"""What failures would do to the cluster as it is now, by the kernels of `klamm whatif`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from klamm.console.columns import ClusterColumns
from klamm.core.columns import Mask, unpad
from klamm.errors import ConfigError
from klamm.pipeline.arrow import PartitionColumns
from klamm.pipeline.whatif.whatif import (
    FINE,
    LEADERLESS,
    OUTCOMES,
    SUMS,
    Failures,
    Judgement,
    broker_failures,
    in_sync,
    judge,
    merge_terms,
    named_failure,
    rack_failures,
    scenario_sums,
    sum_terms,
)

Settings = Mapping[str, tuple[int, bool]]

_PARTITIONS_SHOWN: Final = 1000
_TOPICS_SHOWN: Final = 100
_WORST_SHOWN: Final = 5
#: With more cells than this, all pairs of brokers are computed only on request.
_PAIRS_MAX: Final = 20_000
#: The kernels take memory for the rows that they are given at a time.
_ROWS_TOGETHER: Final = 20_000


def partitions_of(columns: ClusterColumns, settings: Settings) -> PartitionColumns:
    """The partitions as the kernels of `klamm whatif` take them."""
    known = [settings.get(topic, (1, False)) for topic in columns.topics]
    return PartitionColumns(
        replicas=columns.replicas,
        isr=columns.isr,
        leader=columns.leader,
        min_isr=np.repeat(np.array([each[0] for each in known], np.int32), columns.counts),
        unclean=np.repeat(np.array([each[1] for each in known], np.bool_), columns.counts),
    )


def play_failure(
    columns: ClusterColumns, settings: Settings, kind: str, names: Sequence[str]
) -> dict[str, Any]:
    """The answer of `klamm whatif --set`: the sums of the scenario, its partitions and brokers."""
    if not names:
        raise ConfigError(f"Name the {kind} that fail, as in {{{kind!r}: [1, 2]}}.")
    failures = named_failure(columns.racks(), kind, names)
    partitions = partitions_of(columns, settings)
    brokers = np.array(failures.brokers, np.int32)
    failed = failures.failed([0])
    online = np.isin(partitions.replicas, brokers)
    left = online & ~np.isin(partitions.replicas, np.array(failed, np.int32))
    before = judge(partitions, online)
    after = judge(partitions, left)
    caught_up = judge(in_sync(partitions, online), left)
    sums = dict(zip(SUMS, [*_sums(after), *_sums(caught_up)], strict=True))
    stays = [broker for broker in failures.brokers if broker not in failed]
    bad = np.flatnonzero(after.outcome != FINE)
    # Those that the failure made so come first, and of those the worst.
    changed = after.outcome[bad] != before.outcome[bad]
    order = np.lexsort((bad, after.outcome[bad], ~changed))
    topic = columns.topic_of
    return {
        "scenario": failures.name([0]),
        "failed": failed,
        **sums,
        "changed": int(changed.sum()),
        "brokers": [
            {
                "broker": broker,
                "leaders": int((after.leader == broker).sum()),
                "leaders_before": int((before.leader == broker).sum()),
            }
            for broker in stays
        ],
        "partitions": [
            {
                "topic": columns.topics[topic[row]],
                "partition": int(columns.partition[row]),
                "outcome": OUTCOMES[after.outcome[row]],
                "leader": int(after.leader[row]),
                "isr": unpad(after.isr[row]),
                "changed": bool(is_new),
            }
            for row, is_new in zip(
                bad[order][:_PARTITIONS_SHOWN].tolist(),
                changed[order][:_PARTITIONS_SHOWN],
                strict=True,
            )
        ],
        "topics": _topics(columns, after, after.outcome != before.outcome),
    }


def _sums(judged: Judgement) -> list[int]:
    counts = np.bincount(judged.outcome, minlength=len(OUTCOMES))
    return [*counts[LEADERLESS:].tolist(), int(judged.moved.sum())]


def _topics(columns: ClusterColumns, after: Judgement, is_new: Mask) -> list[dict[str, Any]]:
    """The topics that suffer from the failure, the worst first."""
    topic = columns.topic_of
    size = len(columns.topics)
    counts = {
        name: np.bincount(topic[(after.outcome == code) & is_new], minlength=size)
        for code, name in enumerate(OUTCOMES)
        if code != FINE
    }
    total = np.sum(list(counts.values()), axis=0)
    worst = np.lexsort([-counts[name] for name in reversed(OUTCOMES[1:])])
    return [
        {
            "topic": columns.topics[place],
            "partitions": int(columns.counts[place]),
            **{name: int(counted[place]) for name, counted in counts.items()},
        }
        for place in worst.tolist()
        if total[place]
    ][:_TOPICS_SHOWN]


def find_worst(columns: ClusterColumns, settings: Settings) -> dict[str, Any]:
    """The failures of one broker, of two and of a rack that would lose most."""
    partitions = partitions_of(columns, settings)
    racks = columns.racks()
    asked: dict[str, Failures] = {}
    if racks:
        asked["broker"] = broker_failures(racks, 1)
    pairs = len(racks) * (len(racks) - 1) // 2
    if 0 < pairs <= _PAIRS_MAX:
        asked["pair"] = broker_failures(racks, 2)
    if len({rack for rack in racks.values() if rack is not None}) > 1:
        asked["rack"] = rack_failures(racks, 1)
    return {name: _ranked(failures, partitions) for name, failures in asked.items()}


def _ranked(failures: Failures, partitions: PartitionColumns) -> list[dict[str, Any]]:
    """The worst scenarios: most without a leader first, then most unclean, and so on."""
    sets = failures.sets()
    terms = [
        sum_terms(failures, partitions.rows(start, start + _ROWS_TOGETHER)).about(range(len(SUMS)))
        for start in range(0, max(len(partitions), 1), _ROWS_TOGETHER)
    ]
    sums = scenario_sums(failures, sets, merge_terms(terms), range(len(SUMS)))
    order = np.lexsort([*-sums[:, 3::-1].T])[:_WORST_SHOWN]
    return [
        {
            "scenario": failures.name(units),
            "failed": failures.failed(units),
            **dict(zip(SUMS, row, strict=True)),
        }
        for units, row in zip(sets[order].tolist(), sums[order].tolist(), strict=True)
    ]
