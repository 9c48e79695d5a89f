"""The balance of leaders: which partitions are not led by their preferred replica.

The preferred replica is the first of a partition's list. Placement spreads the first replicas
evenly, so leaders are balanced if each partition is led by its preferred replica. This module does
not know when a check takes place.

Rows are partitions of topics that are not queued for deletion. `is_known` marks those with
leadership info; a leader of `NO_BROKER` counts as a leader in the wrong place.
"""

import numpy as np

from klamm.core.columns import I32, Mask, contains


def is_imbalanced(replicas: I32, adding: I32, leader: I32, isr: I32, is_known: Mask) -> Mask:
    """Which partitions the gauge of imbalanced partitions counts.

    While the preferred replica is still being added it cannot lead, so nothing is wrong until it
    is in sync. From then on the partition counts until the reassignment ends, whichever replica
    leads.
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

    For each broker, this is the share of partitions that prefer it but are led by another one.
    Where it exceeds `percentage`, each such partition gets a preferred election, if its preferred
    replica is online and in sync.
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
