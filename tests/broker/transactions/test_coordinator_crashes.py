"""A coordinator that dies at any write, before or after it, loses nothing that was told."""

import contextlib
from collections.abc import Callable

import pytest

from klamm.broker.transactions.coordinator import transaction_partition
from klamm.protocol.codes import ErrorCode
from tests.broker.transactions.driver import ID, ORDERS, PARTITIONS, TIMEOUT_MS, Driver

HOME = transaction_partition(ID, PARTITIONS)


class Dies(Exception):
    """The coordinator is gone."""


class DyingDriver(Driver):
    """Dies at the nth write or marker: before it, or after it and before anybody hears of it."""

    def carry_out(self, effects) -> None:
        for effect in effects:
            kind = type(effect).__name__
            counts = kind in ("AppendState", "SendMarkers")
            if counts:
                self.steps += 1
                if self.steps == self.dies_at and not self.after:
                    raise Dies
            if counts and self.steps == self.dies_at and kind == "AppendState":
                self.log[effect.partition].append(effect)
                raise Dies
            super().carry_out([effect])

    steps = 0
    dies_at = -1
    after = False


def commits(driver: Driver, told: dict[str, ErrorCode]) -> None:
    producer = driver.init()
    told["add"] = driver.add(producer)
    told["commit"] = driver.end(producer)


def aborts(driver: Driver, told: dict[str, ErrorCode]) -> None:
    producer = driver.init()
    told["add"] = driver.add(producer)
    told["abort"] = driver.end(producer, False)


def is_fenced(driver: Driver, told: dict[str, ErrorCode]) -> None:
    producer = driver.init()
    told["add"] = driver.add(producer)
    told["fence"] = driver.init().error
    told["init"] = driver.init().error


def times_out(driver: Driver, told: dict[str, ErrorCode]) -> None:
    producer = driver.init()
    told["add"] = driver.add(producer)
    driver.tick(TIMEOUT_MS + 20_000)


@pytest.mark.rule("TXN-14", "TXN-15")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("script", [commits, aborts, is_fenced, times_out])
def test_every_write_may_be_the_last(script: Callable[..., None], after: bool):
    whole = DyingDriver()
    script(whole, {})
    assert whole.steps >= 4
    for dies_at in range(1, whole.steps + 1):
        driver = DyingDriver()
        driver.dies_at, driver.after = dies_at, after
        told: dict[str, ErrorCode] = {}
        with contextlib.suppress(Dies):
            script(driver, told)
        driver.dies_at = -1
        driver.fail_over()
        check_heir(driver, told)


def check_heir(driver: Driver, told: dict[str, ErrorCode]) -> None:
    """The next coordinator goes on with what is in the log, and keeps what was told."""
    stored = [each for each in driver.stored() if each is not None]
    assert driver.describe().error in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    assert bool(stored) == (driver.describe().error is ErrorCode.NONE)
    if told.get("add") is ErrorCode.NONE and len(told) == 1 and driver.state() == "Ongoing":
        last = stored[-1]
        assert driver.verify((last.producer_id, last.producer_epoch)) == dict.fromkeys(
            ORDERS, ErrorCode.NONE
        )
    # All that was begun comes to its end, and markers say one thing.
    driver.tick(TIMEOUT_MS + 20_000)
    assert driver.state() in ("", "Empty", "CompleteCommit", "CompleteAbort")
    outcomes = {each.is_commit for each in driver.markers}
    assert len(outcomes) <= 1
    if told.get("commit") is ErrorCode.NONE:
        assert outcomes == {True}
        assert driver.state() == "CompleteCommit"
    if "abort" in told or "fence" in told:
        assert outcomes == {False}
    # And the id can be used again, by one producer.
    producer = driver.init()
    assert producer.error is ErrorCode.NONE
    assert driver.add(producer) is ErrorCode.NONE
    assert driver.end(producer) is ErrorCode.NONE
    assert driver.state() == "CompleteCommit"
