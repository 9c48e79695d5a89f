"""What the tests of the ingestion share."""

import time

import pytest

from tests.pipeline.ingest.records import Place
from tests.support.cluster import RealCluster


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def place(request, tmp_path):
    """A place for tables, once for each kind."""
    return Place(request.param, tmp_path)


@pytest.fixture(scope="session")
def cluster(zookeeper_server, tmp_path_factory):
    """One broker for all tests that leave it as they found it."""
    with RealCluster(zookeeper_server, tmp_path_factory.mktemp("topics"), brokers=1) as started:
        yield started


@pytest.fixture
def topic(request, cluster):
    """A topic of two partitions under a name that no other test uses."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    full = f"{name[:100]}-{time.monotonic_ns()}"
    cluster.create(full, partitions=2, factor=1)
    return full
