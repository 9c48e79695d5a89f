"""A streaming query that copies a topic to another one in transactions, for tests that kill it.

python -m tests.pipeline.source.sink_query BOOTSTRAP SOURCE TARGET CHECKPOINT MASTER BATCH
"""

import sys

from klamm.pipeline.session import open_session


def main() -> None:
    bootstrap, source, target, checkpoint, master, batch = sys.argv[1:]
    settings = {
        "spark.speculation": "true",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.3",
        "spark.task.maxFailures": "16",
    }
    spark = open_session(master, settings=settings, progress=False, little=True)
    rows = (
        spark.readStream.format("klamm")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": source})
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
        .select("key", "value")
    )
    query = (
        rows.writeStream.format("klamm")
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": target})
        .option("kafka.transactional.id", "kills")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
