"""A project for Spark's Declarative Pipelines: bronze, silver and gold tables of topics.

`klamm ingest --init DIR` writes it; `spark-pipelines run` in that folder runs it as it is.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from klamm.errors import ConfigError

_SPEC: Final = """\
# Run with: spark-pipelines run
name: {name}
storage: file://{storage}
libraries:
  - glob:
      include: transformations/**
"""

_TABLES: Final = '''\
"""Topics as tables: bronze as they are, silver parsed and checked, gold summed up.

Change the address, the topics and the columns here; everything else follows.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

BOOTSTRAP_SERVERS = "{bootstrap}"
TOPICS = "{topics}"
#: The fields of the records, which are JSON.
COLUMNS = "id bigint, customer string, amount double"

spark = SparkSession.active()


@dp.table(comment="Every record of the topics, as bytes, with where it comes from.")
def bronze() -> DataFrame:
    return (
        spark.readStream.format("klamm")
        .option("kafka.bootstrap.servers", BOOTSTRAP_SERVERS)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", TOPICS)
        .option("startingOffsets", "earliest")
        .load()
    )


def parsed() -> DataFrame:
    text = F.col("value").cast("string")
    return spark.readStream.table("bronze").withColumn("row", F.from_json(text, COLUMNS))


@dp.table(comment="Records that are JSON objects with an id, in columns.")
def silver() -> DataFrame:
    return (
        parsed()
        .where("row.id is not null")
        .selectExpr("row.*", "topic", "partition", "offset", "timestamp")
    )


@dp.table(comment="Records that are not, to look at.")
def silver_dead_letters() -> DataFrame:
    return (
        parsed()
        .where("row is null or row.id is null")
        .select("topic", "partition", "offset", "timestamp", "key", "value")
    )


@dp.materialized_view(comment="How many records and how much, by day and customer.")
def gold() -> DataFrame:
    return (
        spark.read.table("silver")
        .groupBy(F.to_date("timestamp").alias("day"), "customer")
        .agg(F.count("*").alias("records"), F.sum("amount").alias("amount"))
    )
'''


def write_project(folder: Path, topics: Sequence[str], bootstrap_servers: str) -> list[Path]:
    """Write a project into a new or empty folder; returns the files."""
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder; name another one with --init.")
    contents = {
        "spark-pipeline.yml": _SPEC.format(name=folder.name, storage=folder / "storage"),
        "transformations/tables.py": _TABLES.format(
            bootstrap=bootstrap_servers, topics=",".join(topics)
        ),
    }
    written = []
    try:
        (folder / "storage").mkdir(parents=True)
        for name, text in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}.") from None
    return written
