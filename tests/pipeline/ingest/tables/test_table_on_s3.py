"""Tables, checkpoints and files on object storage: a real S3 server, which moto is."""

import pytest
from deltalake import DeltaTable
from pyarrow import dataset, fs

from klamm.pipeline.ingest.checkpoint import BatchPlan, Checkpoint
from klamm.pipeline.ingest.location import locate
from klamm.pipeline.ingest.options import TableTarget
from klamm.pipeline.ingest.tables.parquet import read_manifest
from klamm.pipeline.ingest.tables.table import Commit, create_table, open_table
from tests.pipeline.ingest.tables.test_table import SCHEMA, written

moto_server = pytest.importorskip("moto.server", reason="moto is not installed")


@pytest.fixture(scope="module")
def s3():
    """A server with a bucket, and an environment in which clients find it."""
    patch = pytest.MonkeyPatch()
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "user",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        patch.setenv(name, value)
    store = fs.S3FileSystem(
        endpoint_override=f"{host}:{port}", scheme="http", allow_bucket_creation=True
    )
    store.create_dir("lake")
    yield store
    patch.undo()
    server.stop()


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
        rows = dataset.dataset(files, filesystem=s3, format="parquet").to_table()
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3]


def test_a_checkpoint_on_object_storage(s3):
    folder = locate("s3://lake/checkpoint")
    checkpoint = Checkpoint(folder, {"to": "x"})
    plan = checkpoint.add_plan(BatchPlan(0, {"a": {"0": 1}}, {"a": {"0": 2}}))
    assert Checkpoint(folder, {"to": "x"}).last == plan
    assert checkpoint.prepare(0, {"files": []}) == checkpoint.prepare(0, {"files": ["other"]})
