"""Results in the file system that Spark was told: here a mount of Hadoop's over a local folder."""

import os
import pickle
import uuid
from pathlib import Path

import pytest

from klamm.errors import ConfigError
from klamm.pipeline.ingest.location import Location
from klamm.pipeline.output import object_store_settings, output_folder
from klamm.pipeline.snapshot.snapshot import write_snapshot
from tests.support.command_line import run_here
from tests.support.object_storage import object_storage
from tests.support.snapshots import make_snapshot


@pytest.fixture
def mounted(spark, tmp_path: Path):
    """An address that only Hadoop understands, and the folder behind it."""
    mount = f"klamm-{uuid.uuid4().hex}"
    setting = f"fs.viewfs.mounttable.{mount}.link./data"
    spark.conf.set(setting, tmp_path.as_uri())
    yield f"viewfs://{mount}/data", tmp_path
    spark.conf.unset(setting)


def test_reports_and_tables_are_in_the_same_place(spark, mounted: tuple[str, Path]):
    address, behind = mounted
    out = output_folder(spark, f"{address}/out")
    assert (out.exists(), out.names(), out.size()) == (False, [], None)
    spark.range(3).write.parquet(str(out / "numbers"))
    (out / "report.html").write(b"three")
    assert out.names() == ["numbers", "report.html"]
    assert spark.read.parquet(str(out / "numbers")).count() == 3
    assert (behind / "out" / "report.html").read_bytes() == b"three"
    assert list((behind / "out" / "numbers").glob("*.parquet"))


def test_a_file_is_replaced_as_a_whole(spark, mounted: tuple[str, Path]):
    address, _ = mounted
    report = output_folder(spark, address) / "report.html"
    report.write(bytes(range(256)) * 10_000)
    assert report.read() == bytes(range(256)) * 10_000
    report.write(b"short")
    assert (report.read(), report.size()) == (b"short", 5)
    assert report.parent.names() == ["report.html"]
    report.delete()
    report.delete()
    assert not report.exists()


def test_a_relative_path_is_resolved_by_the_driver(spark, tmp_path: Path):
    here = output_folder(spark, "somewhere/below")
    assert here.uri.startswith("file:/")
    assert here.uri.endswith("/somewhere/below")
    assert (here.name, here.parent.name) == ("below", "somewhere")
    named = output_folder(spark, str(tmp_path / "with a space")) / "plan.json"
    named.write(b"{}")
    named.write(b"[]")
    # Without checksum files beside it.
    assert [each.name for each in (tmp_path / "with a space").iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nowhere://bucket/out", 'No FileSystem for scheme "nowhere". Spark needs the jar'),
        ("s3a://bucket/out", "S3AFileSystem not found. Spark needs the jar"),
        ("a:b", "Relative path in absolute URI: a:b."),
    ],
)
def test_a_file_system_that_spark_lacks_is_refused(spark, address: str, reason: str):
    with pytest.raises(ConfigError, match=f"^{address} cannot be used") as refused:
        output_folder(spark, address)
    assert reason in str(refused.value)


def test_what_cannot_be_written_is_said(spark, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"file/report\.html cannot be written"):
        (output_folder(spark, str(tmp_path / "file")) / "report.html").write(b"")


def test_commands_put_tables_and_pages_there(spark, mounted: tuple[str, Path]):
    address, behind = mounted
    write_snapshot(spark, make_snapshot(60), f"{address}/taken")
    taken = ("--snapshot", f"{address}/taken")
    run_here("whatif", *taken, "--fail", "racks:1", "--out", f"{address}/whatif").ok()
    assert {"brokers", "partitions", "scenarios", "report.html"} <= {
        each.name for each in (behind / "whatif").iterdir()
    }
    plan = ("--remove-brokers", "5", "--explore", "2", "--out", f"{address}/plan/plan.json")
    told = run_here("plan", *taken, *plan, "--json").json()
    assert [row["options"] for row in told["explore"]] == ["as asked", "--seed 1"]
    found = {each.name for each in (behind / "plan").iterdir() if not each.name.startswith(".")}
    assert found == {
        *("plan.json", "waves", "summary.json", "summary.html", "explore", "explore.html"),
    }


def test_arrow_reaches_the_object_store_that_spark_was_told(spark, monkeypatch):
    with object_storage() as bucket:
        told = {
            "fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL"],
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.access.key": "another",
            "fs.s3a.bucket.lake.access.key": "user",
            "fs.s3a.secret.key": "secret",
        }
        for name in [each for each in os.environ if each.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in told.items():
            spark.conf.set(name, value)
        try:
            settings = object_store_settings(spark, bucket)
        finally:
            for name in told:
                spark.conf.unset(name)
        assert dict(settings)["access_key"] == "user"
        place = Location(f"{bucket}/out", settings) / "file"
        place.replace(b"content")
        assert place.read() == b"content"
        assert pickle.loads(pickle.dumps(place)) == place
        assert "secret" not in repr(place)
        monkeypatch.undo()


def test_other_places_need_no_settings(spark):
    assert object_store_settings(spark, "out") == ()
