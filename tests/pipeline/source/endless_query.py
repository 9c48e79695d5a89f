"""A query in a process of its own, so that it can be killed: topic to Parquet files, for ever.

python -m tests.pipeline.source.endless_query BOOTSTRAP TOPIC FOLDER
"""

import sys

from klamm.pipeline.session import open_session


def main() -> None:
    bootstrap, topic, folder = sys.argv[1:]
    stream = (
        open_session("local[2]", progress=False)
        .readStream.format("klamm")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 500)
        .load()
    )
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start(f"{folder}/rows")
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
