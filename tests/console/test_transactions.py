"""Transactions in the API, on a real cluster."""

from urllib.parse import quote

import pytest

from klamm import Cluster
from tests.console.conftest import RunningConsole
from tests.support.command_line import run_here
from tests.support.transactions import RawProducer, leave_hanging

pytestmark = pytest.mark.real


@pytest.fixture
def topic(klamm_cluster: Cluster, klamm_topic_prefix: str) -> str:
    name = klamm_topic_prefix + "paid"
    klamm_cluster.create_topic(name, partitions=1)
    return name


@pytest.fixture
def producer(klamm_cluster: Cluster, topic: str) -> RawProducer:
    ports = {id: klamm_cluster.broker(id).port for id in klamm_cluster.broker_ids}
    made = RawProducer(ports, f"{topic}/id with <b>")
    made.init_at_last()
    return made


def test_they_are_listed_and_described_as_on_the_command_line(
    console: RunningConsole, klamm_cluster: Cluster, topic: str, producer: RawProducer
):
    producer.add_at_last({topic: [0]})
    bootstrap = klamm_cluster.bootstrap_servers
    listed = console.get("/api/transactions?state=Ongoing")
    said = run_here(
        "transactions", "list", "--state", "Ongoing", "--json", bootstrap=bootstrap
    ).json()
    assert listed == said
    assert producer.id in [each["transactional_id"] for each in listed]
    shown = console.get(f"/api/transactions/{quote(producer.id, safe='')}")
    described = run_here("transactions", "describe", producer.id, "--json", bootstrap=bootstrap)
    assert shown == described.json()
    assert shown["partitions"] == [{"topic": topic, "partition": 0}]
    producer.end_at_last(commit=False)
    status, response = console.ask("/api/transactions/nobody")
    assert (status, response["error"]) == (404, "TRANSACTIONAL_ID_NOT_FOUND")


def test_a_hanging_one_is_found_and_aborted(
    console: RunningConsole, klamm_cluster: Cluster, topic: str, producer: RawProducer
):
    bootstrap = klamm_cluster.bootstrap_servers
    leave_hanging(klamm_cluster.admin, producer, topic)
    address = f"/api/hanging?topic={topic}&minutes=0"
    (found,) = console.get(address)
    assert (found["topic"], found["producer_id"]) == (topic, producer.producer_id)
    said = run_here(
        *("transactions", "hanging", "--topic", topic, "--max-transaction-timeout", "0", "--json"),
        bootstrap=bootstrap,
    )
    assert said.json() == [found]
    asked = {"topic": topic, "partition": 0, "start_offset": found["start_offset"]}
    status, response = console.ask("/api/transactions/abort", asked | {"start_offset": 99})
    assert (status, response["error"]) == (409, "INVALID_TXN_STATE")
    assert console.post("/api/transactions/abort", asked) == found
    assert console.get(address) == []
    newest = console.get("/api/actions")[0]
    assert (newest["action"], newest["with"]) == ("transactions/abort", asked)
