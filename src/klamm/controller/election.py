"""The controller election: read `/controller`, and take it in a transaction (section 3.1).

All functions use one session, which owns `/controller` after a won election. The version of
`/controller_epoch` that the transaction wrote fences all later writes of the controller.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from klamm.errors import KlammError
from klamm.zookeeper import znodes
from klamm.zookeeper.store import (
    Create,
    Delete,
    Fence,
    NodeExistsError,
    NoNodeError,
    SetData,
    Store,
    ZooKeeperCode,
)

log = logging.getLogger("klamm.controller")

CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
#: Ephemeral. While an operator moves the role, it names the broker that shall have it.
MOVE: Final = "/klamm_controller_move"
NOBODY: Final = -1


class ElectionError(KlammError):
    """ZooKeeper refused the election for another reason than that another broker has won."""


@dataclass(frozen=True, slots=True)
class Won:
    """A won election: the controller epoch and the fence for writes."""

    epoch: int
    fence: Fence


async def watch_controller(store: Store) -> int:
    """Set the watch on `/controller` and return its broker (NOBODY: no node, or unreadable)."""
    await store.exists(CONTROLLER, watch=True)
    return await read_controller(store)


async def read_controller(store: Store) -> int:
    """The broker that `/controller` names."""
    try:
        node = await store.get(CONTROLLER)
    except NoNodeError:
        return NOBODY
    holder = znodes.decode_controller(node.data)
    if holder == NOBODY:
        reason = znodes.flaw(CONTROLLER, node.data or b"") or f"{CONTROLLER} names no broker"
        log.error("%s; no controller can be elected until it is removed", reason)
    return holder


async def named_by_operator(store: Store) -> int:
    """The broker that an operator wants to be controller now; NOBODY if there is no such wish.

    The watch fires when the operator's command ends, so that the other brokers take part again.
    """
    if await store.exists(MOVE, watch=True) is None:
        return NOBODY
    try:
        node = await store.get(MOVE)
    except NoNodeError:
        return NOBODY
    text = (node.data or b"").decode(errors="replace")
    return int(text) if text.isdecimal() else NOBODY


async def elect(
    store: Store, broker: int, now_ms: Callable[[], int], *, is_named: bool = False
) -> Won | int:
    """Try to become controller; otherwise return the present one (NOBODY: try again later).

    A broker that the operator has named replaces a controller that was elected before it, because
    brokers of Apache Kafka do not wait and may be faster. The replaced controller sees
    `/controller` deleted, as after any other deletion.
    """
    holder = await read_controller(store)
    is_taken = holder != NOBODY
    if is_taken and not is_named:
        return holder
    epoch, version = await _read_epoch(store)
    result = await store.multi(
        [
            *([Delete(CONTROLLER)] if is_taken else []),
            Create(CONTROLLER, znodes.encode_controller(broker, now_ms()), ephemeral=True),
            SetData(CONTROLLER_EPOCH, znodes.encode_controller_epoch(epoch + 1), version),
        ]
    )
    if result.ok:
        stat = result.results[-1].stat
        assert stat is not None, "a successful set has a stat"
        return Won(epoch + 1, Fence(stat.version))
    if result.code not in (
        ZooKeeperCode.NODE_EXISTS,
        ZooKeeperCode.BAD_VERSION,
        ZooKeeperCode.NO_NODE,
    ):
        raise ElectionError(f"the election failed with {result.code.name}")
    # The reply to an earlier attempt may have been lost. Then both nodes already have our values.
    holder = await read_controller(store)
    if holder == broker:
        now, version = await _read_epoch(store)
        if now == epoch + 1:
            return Won(now, Fence(version))
    return holder


async def _read_epoch(store: Store) -> tuple[int, int]:
    """Controller epoch and data version; the node is created if it is missing (ZK-7)."""
    while True:
        try:
            node = await store.get(CONTROLLER_EPOCH)
        except NoNodeError:
            try:
                await store.create(CONTROLLER_EPOCH, b"0")
            except NodeExistsError:
                await asyncio.sleep(0)
        else:
            return znodes.decode_controller_epoch(node.data), node.stat.version
