"""Moving the controller's role to a broker of the operator's choice.

Kafka has no request for this: the broker that creates `/controller` first gets the role, and
deleting the znode starts the race again. klamm nodes other than the chosen one do not compete
meanwhile. Brokers of Apache Kafka do, so several attempts may be needed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from klamm.client.admin import Admin
from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.controller.election import CONTROLLER, MOVE, NOBODY, read_controller
from klamm.errors import KlammError, UnavailableError
from klamm.zookeeper import znodes
from klamm.zookeeper.session import open_store
from klamm.zookeeper.store import NodeExistsError, NoNodeError, Store

_ANNOUNCED_WITHIN_S: Final = 30.0
_LOOK_INTERVAL_S: Final = 0.05


async def move_controller(
    zookeeper: str,
    wanted: int,
    attempts: int,
    say: Callable[[str], None],
    security: ClientSecurity = PLAINTEXT,
) -> None:
    """Move the role to broker `wanted`; KlammError if it did not get the role."""
    store = await open_store(zookeeper)
    try:
        brokers = await _addresses(store, security.protocol)
        if wanted not in brokers:
            known = ", ".join(map(str, sorted(brokers))) or "none"
            raise KlammError(f"Broker {wanted} is not registered in ZooKeeper; these are: {known}.")
        holder = await read_controller(store)
        if holder == wanted:
            say(f"Broker {wanted} is controller already.")
            return
        async with _others_stand_back(store, wanted):
            for attempt in range(1, attempts + 1):
                with contextlib.suppress(NoNodeError):
                    await store.delete(CONTROLLER)
                holder = await _wait_announced(store, brokers, security)
                say(f"Attempt {attempt}: broker {holder} became controller.")
                if holder == wanted:
                    return
        raise KlammError(
            f"Broker {wanted} did not get the role in {attempts} attempts; broker {holder} has it."
        )
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _others_stand_back(store: Store, wanted: int) -> AsyncIterator[None]:
    try:
        await store.create(MOVE, str(wanted).encode(), ephemeral=True)
    except NodeExistsError:
        raise KlammError("Another command is moving the controller's role right now.") from None
    try:
        yield
    finally:
        with contextlib.suppress(NoNodeError):
            await store.delete(MOVE)


async def _addresses(store: Store, protocol: str) -> dict[int, str]:
    """Where clients of this security protocol reach each broker."""
    found = {}
    for name in await store.children(znodes.BROKER_IDS):
        with contextlib.suppress(NoNodeError):
            node = await store.get(znodes.broker_path(int(name)))
            registration = znodes.decode_broker(int(name), node.data)
            found[int(name)] = next(
                (
                    f"{each.host}:{each.port}"
                    for each in registration.endpoints
                    if each.security_protocol == protocol
                ),
                "",
            )
    return found


async def _wait_announced(store: Store, brokers: dict[int, str], security: ClientSecurity) -> int:
    """Wait until all reachable brokers know the new controller; returns its id."""
    addresses = [address for address in brokers.values() if address]
    holder = NOBODY
    try:
        async with asyncio.timeout(_ANNOUNCED_WITHIN_S):
            while True:
                holder = await read_controller(store)
                if holder != NOBODY and await asyncio.to_thread(
                    _all_know, addresses, holder, security
                ):
                    return holder
                await asyncio.sleep(_LOOK_INTERVAL_S)
    except TimeoutError:
        who = "No broker took the role" if holder == NOBODY else f"Broker {holder} was not heard of"
        raise UnavailableError(f"{who} within {_ANNOUNCED_WITHIN_S:.0f} s.") from None


def _all_know(addresses: list[str], holder: int, security: ClientSecurity) -> bool:
    for address in addresses:
        with Admin(address, timeout_s=5, security=security) as admin:
            try:
                if admin.metadata([]).controller_id != holder:
                    return False
            except UnavailableError:
                continue  # the broker may be shutting down; the controller cannot reach it either
    return True
