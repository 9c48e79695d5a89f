"""`klamm transactions`, and records in transactions, on klamm and on Apache Kafka."""

import pytest

from klamm.client.admin import Admin
from tests.cli.conftest import AnyCluster
from tests.support.command_line import Klamm
from tests.support.transactions import RawProducer, leave_hanging


@pytest.fixture
def producer(cluster: AnyCluster, topic: str) -> RawProducer:
    with Admin(cluster.bootstrap_servers) as admin:
        ports = {each.node_id: each.port for each in admin.metadata([]).brokers}
    producer = RawProducer(ports, f"{topic}-id")
    producer.init_at_last()
    return producer


def leader_of(cluster: AnyCluster, topic: str) -> int:
    with Admin(cluster.bootstrap_servers) as admin:
        return admin.metadata([topic]).topics[0].partitions[0].leader_id


def test_lines_are_written_in_one_transaction(klamm: Klamm, topic: str):
    klamm("topics", "create", topic, "--partitions", "1", "--replication-factor", "1").ok()
    done = klamm("produce", topic, "--transactional-id", f"{topic}-loader", stdin=b"a\nb\n")
    assert "Wrote 2 records" in done.ok().err
    assert klamm("consume", topic, "--exit").ok().out == "a\nb\n"
    found = klamm("transactions", "describe", f"{topic}-loader", "--json").json()
    assert found["state"] in ("PrepareCommit", "CompleteCommit")


def test_what_is_not_committed_is_read_only_on_request(
    klamm: Klamm, cluster: AnyCluster, topic: str, producer: RawProducer
):
    klamm("topics", "create", topic, "--partitions", "1", "--replication-factor", "1").ok()
    producer.add_at_last({topic: [0]})
    producer.produce_at_last(leader_of(cluster, topic), topic, b"open")
    assert klamm("consume", topic, "--exit").ok().out == ""
    uncommitted = klamm("consume", topic, "--exit", "--isolation-level", "read_uncommitted")
    assert uncommitted.ok().out == "open\n"
    listed = klamm("transactions", "list", "--state", "Ongoing", "--json").json()
    assert [each["state"] for each in listed if each["transactional_id"] == producer.id] == [
        "Ongoing"
    ]
    found = klamm("transactions", "describe", producer.id, "--json").json()
    assert found["partitions"] == [{"topic": topic, "partition": 0}]
    assert found["producer_id"] == producer.producer_id
    assert producer.id in klamm("transactions", "describe", producer.id).ok().out
    # The coordinator will end it: it does not hang, however old it is.
    old = klamm("transactions", "hanging", "--max-transaction-timeout", "0", "--topic", topic)
    assert "No transaction hangs" in old.ok().err
    producer.end_at_last(commit=False)


def test_a_hanging_transaction_is_found_and_aborted(
    klamm: Klamm, cluster: AnyCluster, topic: str, producer: RawProducer
):
    klamm("topics", "create", topic, "--partitions", "1", "--replication-factor", "1").ok()
    with Admin(cluster.bootstrap_servers) as admin:
        leave_hanging(admin, producer, topic)
    flags = ("--topic", topic, "--partition", "0", "--start-offset")
    (found,) = klamm(
        "transactions", "hanging", "--max-transaction-timeout", "0", "--topic", topic, "--json"
    ).json()
    assert (found["producer_id"], found["topic"]) == (producer.producer_id, topic)
    wrong = klamm("transactions", "abort", *flags, str(found["start_offset"] + 1))
    wrong.failed("INVALID_TXN_STATE", "began at")
    aborted = klamm("transactions", "abort", *flags, str(found["start_offset"]), "--json").json()
    assert aborted == found
    rest = klamm("transactions", "hanging", "--max-transaction-timeout", "0", "--topic", topic)
    assert "No transaction hangs" in rest.ok().err
    assert klamm("consume", topic, "--exit").ok().out == ""


def test_what_is_not_there_is_an_error(klamm: Klamm, topic: str, producer: RawProducer):
    unknown = klamm("transactions", "describe", f"{topic}-nobody")
    unknown.failed("TRANSACTIONAL_ID_NOT_FOUND", f"{topic}-nobody")
    klamm("transactions", "list", "--state", "Sleeping").failed("Sleeping", "Ongoing")
