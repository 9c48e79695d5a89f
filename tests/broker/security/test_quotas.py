"""Quotas and limits as arithmetic on times that the test chooses."""

import pytest

from klamm.broker.security.connection_quotas import (
    Admission,
    ConnectionLimits,
    ConnectionQuotas,
    Fate,
    parse_overrides,
)
from klamm.broker.security.quotas import ClientQuotas, Quota, QuotaWindow, SampledRate
from klamm.errors import ConfigError


@pytest.mark.rule("SEC-11")
def test_one_request_after_a_pause_is_delayed_by_its_size_over_the_limit_less_ten_seconds():
    quotas = ClientQuotas()
    quotas.put(("alice", None), {"producer_byte_rate": "1000"})
    assert quotas.record(Quota.PRODUCE, "alice", "c", 10_000, 0) == 0
    other = ClientQuotas()
    other.put(("alice", None), {"producer_byte_rate": "1000"})
    assert other.record(Quota.PRODUCE, "alice", "c", 15_000, 0) == 5_000


@pytest.mark.rule("SEC-11")
def test_old_samples_are_forgotten():
    rate = SampledRate(QuotaWindow())
    rate.record(11_000, 0)
    assert rate.measure(0) == (1100.0, 10_000.0)
    assert rate.measure(10_500)[0] == pytest.approx(11_000 / 10.5)
    assert rate.measure(11_000)[0] == 0


LEVELS = [
    ("alice", "app"),
    ("alice", "<default>"),
    ("alice", None),
    ("<default>", "app"),
    ("<default>", "<default>"),
    ("<default>", None),
    (None, "app"),
    (None, "<default>"),
]


@pytest.mark.rule("SEC-11")
@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_most_specific_entity_wins(first):
    quotas = ClientQuotas()
    for rank, entity in enumerate(LEVELS[first:]):
        quotas.put(entity, {"producer_byte_rate": str(rank + 1)})
    found = quotas.limit(Quota.PRODUCE, "alice", "app")
    assert found is not None
    assert found[0] == 1


@pytest.mark.rule("SEC-11")
def test_a_users_clients_share_the_users_limit():
    quotas = ClientQuotas()
    quotas.put(("<default>", None), {"consumer_byte_rate": "1000"})
    quotas.record(Quota.FETCH, "alice", "one", 10_000, 0)
    assert quotas.record(Quota.FETCH, "alice", "two", 1_000, 0) == 1_000
    assert quotas.record(Quota.FETCH, "bob", "two", 1_000, 0) == 0
    assert quotas.bytes_max(Quota.FETCH, "alice", "one") == 10_000


@pytest.mark.rule("SEC-11")
def test_traffic_that_was_not_sent_is_taken_back():
    quotas = ClientQuotas()
    quotas.put((None, "app"), {"consumer_byte_rate": "10"})
    assert quotas.record(Quota.FETCH, "alice", "app", 1_000, 0) > 0
    quotas.unrecord(Quota.FETCH, "alice", "app", 1_000)
    assert quotas.record(Quota.FETCH, "alice", "app", 1, 0) == 0


@pytest.mark.rule("SEC-11a", "ADM-13")
def test_a_request_that_finds_the_bucket_not_empty_is_let_through_whole():
    quotas = ClientQuotas()
    quotas.put(("alice", None), {"controller_mutation_rate": "2"})
    assert quotas.may_mutate("alice", "c", 0)
    quotas.mutate("alice", "c", 100, 0)
    assert not quotas.may_mutate("alice", "c", 0)
    assert quotas.mutation_throttle_ms("alice", "c", 0) == (100 - 22) / 2 * 1000
    assert not quotas.may_mutate("alice", "c", 38_000)
    assert quotas.may_mutate("alice", "c", 39_000)


def connections(**limits) -> ConnectionQuotas:
    return ConnectionQuotas(
        ConnectionLimits(**limits), inter_broker="INTERNAL", window=QuotaWindow()
    )


@pytest.mark.rule("SEC-19")
def test_an_address_beyond_its_limit_is_closed_at_once():
    quotas = connections(per_ip=1, per_ip_overrides={"10.0.0.2": 2})
    assert quotas.on_accepted("A", "10.0.0.1", 0) == Admission(Fate.ACCEPT)
    assert quotas.on_accepted("A", "10.0.0.1", 0) == Admission(Fate.CLOSE)
    quotas.on_closed("A", "10.0.0.1")
    quotas.on_closed("A", "10.0.0.1")
    assert quotas.on_accepted("A", "10.0.0.1", 0) == Admission(Fate.ACCEPT)
    for _ in range(2):
        assert quotas.on_accepted("A", "10.0.0.2", 0) == Admission(Fate.ACCEPT)
    assert quotas.on_accepted("A", "10.0.0.2", 0).is_refused


@pytest.mark.rule("SEC-19")
def test_beyond_the_total_only_the_inter_broker_listener_accepts():
    quotas = connections(total=1, of_listener={"b": 0})
    assert quotas.has_room("A")
    assert not quotas.has_room("B")
    quotas.on_accepted("A", "10.0.0.1", 0)
    assert not quotas.has_room("A")
    assert quotas.has_room("INTERNAL")
    quotas.on_accepted("INTERNAL", "10.0.0.1", 0)
    assert quotas.is_over()


@pytest.mark.rule("SEC-19")
def test_beyond_the_rate_of_a_listener_a_connection_waits_and_of_an_address_it_is_closed():
    quotas = connections(creation_rate_of_listener={"a": 1})
    for _ in range(10):
        assert quotas.on_accepted("A", "10.0.0.1", 0) == Admission(Fate.ACCEPT)
    late = quotas.on_accepted("A", "10.0.0.1", 0)
    assert late.fate is Fate.ACCEPT
    assert late.delay_ms == 1000
    quotas = connections()
    quotas.ip_rates["10.0.0.1"] = 1
    for _ in range(10):
        assert not quotas.on_accepted("A", "10.0.0.1", 0).is_refused
    closed = quotas.on_accepted("A", "10.0.0.1", 0)
    assert closed == Admission(Fate.CLOSE, 1000)
    assert not quotas.on_accepted("A", "10.0.0.2", 0).is_refused


def test_rates_of_addresses_that_have_not_connected_lately_are_dropped():
    quotas = connections()
    quotas.ip_rates["<default>"] = 1
    for number in range(5000):
        quotas.on_accepted("A", f"10.0.{number // 250}.{number % 250}", number * 1000)
    assert len(quotas._rates) <= 1000
    for _ in range(10):
        quotas.on_accepted("A", "10.1.1.1", 5_000_000)
    for number in range(1200):
        quotas.on_accepted("A", f"10.2.{number // 250}.{number % 250}", 5_000_000)
    assert quotas.on_accepted("A", "10.1.1.1", 5_000_000).is_refused, "what counts is kept"


@pytest.mark.rule("SEC-19")
def test_overrides_are_addresses_with_counts():
    assert parse_overrides("10.0.0.1:5, ::1:7,") == {"10.0.0.1": 5, "::1": 7}
    with pytest.raises(ConfigError):
        parse_overrides("10.0.0.1")
