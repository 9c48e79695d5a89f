"""The data of one partition's state znode; klamm itself writes many of them at a time."""

from collections.abc import Sequence

from klamm.zookeeper.znodes import encode_states


def encode_state(
    leader: int, leader_epoch: int, isr: Sequence[int], controller_epoch: int, recovery: int = 0
) -> bytes:
    """A partition's state (ZK-16)."""
    (data,) = encode_states([leader], [leader_epoch], [tuple(isr)], [recovery], controller_epoch)
    return data
