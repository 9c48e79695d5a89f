"""Plans that are run on a real cluster, also across a restart of the console."""

import pytest

from klamm import Cluster
from klamm.client.admin import Admin
from klamm.console.columns import ClusterColumns
from klamm.console.moves import CANCELLED, DONE, PAUSED, RUNNING, Mover
from klamm.console.plans import Prepared, prepare
from klamm.console.reading import read_columns, read_sizes
from klamm.errors import ConfigError
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture
def topic(klamm_cluster: Cluster, klamm_topic_prefix: str) -> str:
    name = klamm_topic_prefix + "moving"
    klamm_cluster.create_topic(name, partitions=4, replication_factor=2)
    return name


@pytest.fixture
def admin(klamm_cluster: Cluster):
    with Admin(klamm_cluster.bootstrap_servers) as made:
        yield made


def plan_for(admin: Admin, topic: str, factor: int) -> Prepared:
    columns: ClusterColumns = read_columns(admin, {})
    others = "|".join(each for each in columns.topics if each != topic)
    body = {"replication_factor": factor, "topics": topic, "pin": others, "wave_moves": 1}
    return prepare(columns, {}, read_sizes(admin, columns.live.tolist()), body)


def factors(admin: Admin, topic: str) -> set[int]:
    columns = read_columns(admin, {})
    rows = columns.topic_of == columns.topics.index(topic)
    return set((columns.replicas[rows] >= 0).sum(axis=1).tolist())


def test_a_plan_pauses_and_goes_on_in_another_console(admin, topic, tmp_path):
    file = tmp_path / "moves.json"
    prepared = plan_for(admin, topic, 3)
    assert len(prepared.waves) > 1
    first = Mover(admin, file, "somebody")
    first.keep(prepared)
    first.run(prepared.id, None)
    first.pause()
    wait_until(lambda: first.job()["status"] == PAUSED, "the pause")
    first.close()

    second = Mover(admin, file, "somebody else")
    second.start()
    assert second.job()["status"] == PAUSED
    assert second.job()["user"] == "somebody"
    second.resume()
    wait_until(lambda: second.job()["status"] == DONE, "the end")
    second.close()
    assert factors(admin, topic) == {3}


def test_a_plan_that_was_running_goes_on_by_itself(admin, topic, tmp_path):
    prepared = plan_for(admin, topic, 3)
    first = Mover(admin, tmp_path / "moves.json", "somebody")
    first.keep(prepared)
    first.run(prepared.id, 50_000_000)
    first.close()
    assert first.job()["status"] in (RUNNING, DONE)
    second = Mover(admin, tmp_path / "moves.json", "somebody")
    second.start()
    wait_until(lambda: second.job()["status"] == DONE, "the end")
    second.close()
    assert factors(admin, topic) == {3}


def test_what_is_cancelled_stays_cancelled(admin, topic, tmp_path):
    prepared = plan_for(admin, topic, 3)
    mover = Mover(admin, tmp_path / "moves.json", "somebody")
    mover.keep(prepared)
    mover.run(prepared.id, None)
    mover.cancel()
    wait_until(lambda: mover.job()["status"] == CANCELLED, "the end")
    mover.close()
    again = Mover(admin, tmp_path / "moves.json", "somebody")
    again.start()
    assert again.job()["status"] == CANCELLED
    with pytest.raises(ConfigError, match="No plan is running"):
        again.cancel()


def test_only_a_plan_that_was_shown_is_run(admin, tmp_path):
    mover = Mover(admin, tmp_path / "moves.json", "somebody")
    with pytest.raises(ConfigError, match="preview it again"):
        mover.run("unknown", None)
