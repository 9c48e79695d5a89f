"""Throughput and latency of three brokers beside Apache Kafka 3.9.1: rows in turns, all rounds.

    make bench BENCH=brokers
    python -m bench.brokers [--rounds 3] [--seconds 4] [--rows produce,java,consume,raw]

Rows: produce with librdkafka, with Java, without a client; consume with each of them; singles, one
record at a time; crowd, ten producers. Records have 1 KB, topics six partitions. Figures are the
median of the rounds, with the least and the most. Clients, brokers and ZooKeeper share the cores,
so only ratios carry over to another machine.
"""

import argparse

from bench.side_by_side import load
from bench.side_by_side.duel import Duel, duel

#: Records of 1 KB that the consumers read.
CONSUMED = 600_000
JAVA_RECORDS = 100_000
SINGLES = 500
ROWS = ("produce", "java", "consume", "raw", "singles", "crowd")


def measure(contest: Duel, rows: list[str], seconds: float) -> None:
    """Warm up, and take all rows."""
    for bootstrap in contest.bootstrap.values():
        for replication_factor in (1, 3):
            load.in_new_topic(
                bootstrap,
                replication_factor,
                lambda topic, at=bootstrap: load.produce_for(at, topic, 3, "all"),
            )
    if "produce" in rows:
        for replication_factor in (1, 3):
            for acks in ("1", "all"):
                contest.measure(
                    f"produce, RF {replication_factor}, acks={acks}",
                    lambda at, factor=replication_factor, acks=acks: load.in_new_topic(
                        at,
                        factor,
                        lambda topic: load.rate(*load.produce_for(at, topic, seconds, acks)),
                    ),
                )
    if "raw" in rows:
        for replication_factor in (1, 3):
            contest.measure(
                f"produce without a client, RF {replication_factor}, acks=all",
                lambda at, factor=replication_factor: load.in_new_topic(
                    at, factor, lambda topic: load.raw_produce(at, topic, seconds)
                ),
            )
    if "java" in rows:
        for replication_factor in (1, 3):
            contest.measure(
                f"produce, Java, RF {replication_factor}, acks=all",
                lambda at, factor=replication_factor: load.in_new_topic(
                    at, factor, lambda topic: load.java_produce(at, topic, JAVA_RECORDS, "all")
                ),
            )
    if "consume" in rows:
        filled = {at: load.fill(at, CONSUMED) for at in contest.bootstrap.values()}
        contest.measure("consume", lambda at: load.consume(at, *filled[at]))
        if "java" in rows:
            contest.measure("consume, Java", lambda at: load.java_consume(at, *filled[at]))
        if "raw" in rows:
            contest.measure(
                "consume without a client", lambda at: load.raw_consume(at, *filled[at])
            )
    if "singles" in rows:
        contest.measure(
            "one record at a time, RF 3, acks=all",
            lambda at: load.in_new_topic(
                at, 3, lambda topic: load.one_at_a_time(at, topic, SINGLES)
            ),
        )
    if "crowd" in rows:
        contest.measure(
            "ten producers beside 100 idle connections, RF 3, acks=all",
            lambda at: load.in_new_topic(at, 3, lambda topic: load.crowd(at, topic, seconds)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of producing, for each round")
    parser.add_argument("--rows", default=",".join(ROWS))
    options = parser.parse_args()
    rows = options.rows.split(",")
    for row in rows:
        if row not in ROWS:
            parser.error(f"there is no row {row}; there are: {', '.join(ROWS)}")
    with duel(options.rounds, {"log.retention.check.interval.ms": 60_000}) as contest:
        contest.note_memory("idle")
        measure(contest, rows, options.seconds)
        contest.note_memory("after the load")


if __name__ == "__main__":
    main()
