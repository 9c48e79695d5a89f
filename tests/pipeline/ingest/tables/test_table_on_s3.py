"""Tables, checkpoints and files on object storage: a real S3 server, which moto is."""

import os

import pytest
from deltalake import DeltaTable
from pyarrow import dataset
from pyiceberg.catalog import load_catalog

from klamm.pipeline.ingest.checkpoint import BatchPlan, Checkpoint
from klamm.pipeline.ingest.location import locate
from klamm.pipeline.ingest.options import TableTarget
from klamm.pipeline.ingest.tables.parquet import read_manifest
from klamm.pipeline.ingest.tables.table import Commit, create_table, open_table
from tests.pipeline.ingest.tables.test_table import SCHEMA, written
from tests.support.object_storage import object_storage


@pytest.fixture(scope="module")
def s3():
    """A bucket, and an environment in which clients find it."""
    with object_storage() as bucket:
        yield bucket


def test_commits_of_an_iceberg_table_on_object_storage(s3, tmp_path):
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"{s3}/warehouse",
    }
    target = TableTarget("iceberg", "test.lake.orders")
    table = create_table(target, catalog, SCHEMA, (), "q")
    for batch, numbers in enumerate([(1, 2), (3,)]):
        table.commit(Commit(written(table, *numbers), batch=batch))
    assert open_table(target, catalog).last_batch == 1
    told = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": os.environ["AWS_REGION"]}
    rows = load_catalog("test", **catalog, **told).load_table("lake.orders").scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_commits_on_object_storage(s3, kind):
    target = TableTarget(kind, f"s3a://lake/{kind}/orders")
    assert open_table(target, {}) is None
    table = create_table(target, {}, SCHEMA, (), "q")
    table.commit(Commit(written(table, 1, 2), batch=0))
    table.commit(Commit(written(table, 3), batch=1))
    again = open_table(target, {})
    assert again.last_batch == 1
    if kind == "delta":
        rows = DeltaTable(f"s3://lake/{kind}/orders").to_pyarrow_table()
    else:
        files = [each.removeprefix("s3://") for each in read_manifest(target.name)]
        store, _ = locate(s3).open()
        rows = dataset.dataset(files, filesystem=store, format="parquet").to_table()
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3]


def test_a_checkpoint_on_object_storage(s3):
    folder = locate("s3://lake/checkpoint")
    checkpoint = Checkpoint(folder, {"to": "x"})
    plan = checkpoint.add_plan(BatchPlan(0, {"a": {"0": 1}}, {"a": {"0": 2}}))
    assert Checkpoint(folder, {"to": "x"}).last == plan
    assert checkpoint.prepare(0, {"files": []}) == checkpoint.prepare(0, {"files": ["other"]})
