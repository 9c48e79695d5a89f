"""Leadership and the preferred replica: how far apart they are, and what to do about it.

The preferred replica is the first of a partition's list. Placement spreads the first replicas
evenly, so a cluster in which everybody leads where preferred is a balanced one, as far as the
number of leaders goes. When to look is not known here.

Rows are partitions of topics that are not queued for deletion. `is_known` marks those with
leadership info; a leader of `NO_BROKER` counts as a leader in the wrong place.
"""

import numpy as np

from klamm.core.columns import I32, Mask, contains


def is_imbalanced(replicas: I32, adding: I32, leader: I32, isr: I32, is_known: Mask) -> Mask:
    """Which partitions the gauge of imbalanced partitions counts.

    While the preferred replica is still being added it cannot lead, so nothing is wrong until it
    is in sync. From then on the partition counts until the reassignment is over, whoever leads.
    """
    preferred = replicas[:, :1]
    is_adding = contains(adding, preferred)[:, 0]
    in_sync = contains(isr, preferred)[:, 0]
    imbalanced: Mask = is_known & np.where(is_adding, in_sync, leader != preferred[:, 0])
    return imbalanced


def needs_preferred_election(
    replicas: I32,
    leader: I32,
    isr: I32,
    is_known: Mask,
    preferred_online: Mask,
    percentage: int,
) -> Mask:
    """Which partitions an automatic rebalance hands back to their preferred replica.

    Each broker is judged by itself, by the share of the partitions preferring it that it does not
    lead. Where that exceeds `percentage`, every misplaced partition is moved, if the preferred
    replica is able to lead: online and in sync.
    """
    preferred = replicas[:, 0]
    is_misplaced = is_known & (leader != preferred)
    brokers, group = np.unique(preferred, return_inverse=True)
    preferring = np.bincount(group, minlength=len(brokers))
    misplaced = np.bincount(group[is_misplaced], minlength=len(brokers))
    is_tilted = misplaced / preferring > percentage / 100
    able = preferred_online & contains(isr, replicas[:, :1])[:, 0]
    chosen: Mask = is_misplaced & is_tilted[group] & able
    return chosen
