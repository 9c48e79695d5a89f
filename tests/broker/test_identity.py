"""Which of a controller's requests a broker takes (FENCE-10, FENCE-11)."""

import pytest

from klamm.broker.identity import BrokerIdentity
from klamm.protocol.codes import ErrorCode as E


def identity() -> BrokerIdentity:
    return BrokerIdentity(1, "cluster", broker_epoch=50, controller_epoch=7)


@pytest.mark.rule("FENCE-10", "CTRL-3")
@pytest.mark.parametrize(
    ("epoch", "code", "remembered"),
    [(6, E.STALE_CONTROLLER_EPOCH, 7), (7, E.NONE, 7), (8, E.NONE, 8)],
)
def test_an_older_controller_is_refused_and_a_newer_one_remembered(
    epoch: int, code: E, remembered: int
):
    broker = identity()
    assert broker.admit_controller(epoch, 50) == code
    assert broker.controller_epoch == remembered


@pytest.mark.rule("FENCE-11", "CTRL-2")
@pytest.mark.parametrize(
    ("epoch", "code"), [(49, E.STALE_BROKER_EPOCH), (-1, E.NONE), (50, E.NONE), (51, E.NONE)]
)
def test_a_request_for_an_earlier_incarnation_is_refused(epoch: int, code: E):
    broker = identity()
    assert broker.admit_controller(8, epoch) == code
    # Refused altogether: the controller's epoch is not remembered either.
    assert broker.controller_epoch == (7 if code else 8)
