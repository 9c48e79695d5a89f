"""A secured broker of each kind, for all dialogues with them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.protocol.apis import ApiKey as K
from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.security.dialogue import (
    PATIENCE_S,
    Both,
    SecuredSolo,
)
from tests.support.mixed_cluster import Kind
from tests.support.tokens import TokenIssuer
from tests.support.waiting import wait_until


@pytest.fixture(scope="package")
def tokens() -> TokenIssuer:
    return TokenIssuer()


@pytest.fixture(scope="package")
def both(
    zookeeper_server: ZooKeeperServer,
    kafka_libs: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tokens: TokenIssuer,
) -> Iterator[Both]:
    """A broker of each kind, in a cluster of its own."""
    directory = tmp_path_factory.mktemp("both")
    address = zookeeper_server.address
    with (
        SecuredSolo(address, directory / "kafka", Kind.KAFKA, kafka_libs, tokens) as kafka,
        SecuredSolo(address, directory / "klamm", Kind.KLAMM, kafka_libs, tokens) as klamm,
    ):
        clusters = {Kind.KAFKA: kafka, Kind.KLAMM: klamm}
        for cluster in clusters.values():
            cluster.create_topic("there", 2)
            _wait_for_coordinators(cluster)
        yield clusters


def _wait_for_coordinators(cluster: SecuredSolo) -> None:
    def are_there() -> bool:
        with cluster.talk("admin") as talk:
            found = [talk.raw.ask(K.FIND_COORDINATOR, 2, key="g", key_type=kind) for kind in (0, 1)]
            known = talk.raw.ask(K.OFFSET_FETCH, 5, group_id="g", topics=[])
            begun = [
                talk.raw.ask(K.INIT_PRODUCER_ID, 1, transactional_id=id, transaction_timeout=1000)
                for id in ("g", None)
            ]
        return not any(each.error_code for each in (*found, known, *begun))

    wait_until(are_there, "coordinators", PATIENCE_S)
