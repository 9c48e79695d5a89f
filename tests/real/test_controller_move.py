"""The operator names who shall be controller, and rivals that do not stand back."""

import json

import pytest
from kazoo.client import KazooClient

from tests.support.lab import Lab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

MOVE = "/klamm_controller_move"


@pytest.fixture
def rival(lab: Lab):
    """The session of a broker of another kind, which is controller."""
    lab.start()
    session = KazooClient(lab.address, timeout=10)
    session.start()
    take_role(session)
    wait_until(lambda: "resigned" in lab.nodes[100].log)
    yield session
    session.stop()
    session.close()


def take_role(session: KazooClient) -> None:
    """Take the role from the node that has it, in one step, before others can compete for it."""
    value = {"version": 2, "brokerid": 1, "timestamp": "1", "kraftControllerEpoch": -1}

    def is_taken() -> bool:
        epoch, stat = session.get("/controller_epoch")
        transaction = session.transaction()
        transaction.delete("/controller")
        transaction.create("/controller", json.dumps(value).encode(), ephemeral=True)
        transaction.set_data("/controller_epoch", b"%d" % (int(epoch) + 1), stat.version)
        # Another node may have become controller between the read and the transaction.
        return not any(isinstance(result, Exception) for result in transaction.commit())

    wait_until(is_taken, "the rival's transaction")


def test_the_named_node_takes_the_role_from_a_rival_that_was_faster(lab: Lab, rival: KazooClient):
    before = int(lab.zk.get("/controller_epoch")[0])
    lab.zk.create(MOVE, b"100", ephemeral=True)
    take_role(rival)
    lab.wait_controller(100)
    assert int(lab.zk.get("/controller_epoch")[0]) >= before + 1
    lab.create_topic("served", {0: [1, 2, 3]})


def test_a_node_that_is_not_named_lets_others_have_the_role(lab: Lab, rival: KazooClient):
    lab.zk.create(MOVE, b"1", ephemeral=True)
    lab.zk.delete("/controller")
    wait_until(lambda: "standing back for 1" in lab.nodes[100].log)
    assert lab.controller_id() is None
    lab.zk.delete(MOVE)
    lab.wait_controller(100)
