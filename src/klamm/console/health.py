"""The state of a cluster in one sentence: how much has no leader or lacks replicas, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from klamm.console.columns import ClusterColumns
from klamm.names import counted


@dataclass(frozen=True, slots=True)
class Health:
    """What the sentence says, and how bad it is: `good`, `warn` or `bad`."""

    level: str
    text: str
    partitions: int
    leaderless: int
    under_replicated: int


def judge_health(columns: ClusterColumns, down_since: Mapping[int, datetime]) -> Health:
    """Say how the cluster is; `down_since` has the brokers whose end is known or was seen."""
    total = len(columns)
    leaderless = int(columns.is_leaderless.sum())
    lacking = int(columns.is_under_replicated.sum())
    down = [each.id for each in columns.brokers if not each.live]
    if not len(columns.live):
        return Health("bad", "No broker answers.", total, leaderless, lacking)
    parts = []
    if not total:
        parts.append(f"The cluster of {counted(len(columns.live), 'broker')} has no partitions yet")
    elif leaderless:
        parts.append(
            f"{leaderless:,} of {counted(total, 'partition')} "
            f"{'has' if leaderless == 1 else 'have'} no leader"
        )
    else:
        subject = "The only partition has" if total == 1 else f"All {total:,} partitions have"
        parts.append(f"{subject} a leader")
    if lacking:
        verb = "is" if lacking == 1 else "are"
        parts.append(f"{lacking:,} {verb} under-replicated" + _why(columns, down, down_since))
    elif down:
        parts.append(_down(down, down_since))
    if columns.controller < 0:
        parts.append("nobody is controller")
    level = "bad" if leaderless or columns.controller < 0 else "warn" if lacking or down else "good"
    return Health(level, "; ".join(parts) + ".", total, leaderless, lacking)


def _why(columns: ClusterColumns, down: list[int], down_since: Mapping[int, datetime]) -> str:
    if not down:
        return " because replicas are catching up"
    rows = columns.is_under_replicated
    hit = [broker for broker in down if (columns.replicas[rows] == broker).any()]
    known = [down_since[broker] for broker in hit if broker in down_since]
    since = f" since {min(known):%H:%M}" if known else ""
    if not hit:
        return f"{since} because replicas are catching up"
    who = _listed(hit)
    missing = np.isin(columns.replicas, np.array(hit, np.int32)).any(axis=1)
    also = " and replicas are catching up" if (rows & ~missing).any() else ""
    noun = "broker" if len(hit) == 1 else "brokers"
    return f"{since} because {noun} {who} {'is' if len(hit) == 1 else 'are'} down{also}"


def _down(down: list[int], down_since: Mapping[int, datetime]) -> str:
    known = [down_since[broker] for broker in down if broker in down_since]
    since = f" since {min(known):%H:%M}" if known else ""
    noun = "broker" if len(down) == 1 else "brokers"
    return f"{noun} {_listed(down)} {'is' if len(down) == 1 else 'are'} down{since}"


def _listed(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:5]))
    return shown if len(ids) <= 5 else f"{shown} and {len(ids) - 5} more"
