"""Throughput and latency of three brokers beside Apache Kafka 3.9.1: rows in turns, all rounds.

    make bench BENCH=brokers
    python -m bench.brokers [--rounds 3] [--seconds 4] [--rows produce,java,consume,raw]

Rows: produce with librdkafka, with Java, without a client; consume with each of them; singles, one
record at a time; crowd, ten producers. Records have 1 KB, topics six partitions. Figures are the
median of the rounds, with the least and the most. A row that writes begins each turn with a full
page cache, and all rows need 45 GB of disk. Clients, brokers and ZooKeeper share the cores, so only
ratios carry over to another machine.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.side_by_side import load
from bench.side_by_side.duel import Duel, Figures, duel
from bench.side_by_side.page_cache import PageCache

#: Records of 1 KB that consumers read, of either cluster: the first tenths of a second are slow.
CONSUMED = 1_200_000
JAVA_RECORDS = 100_000
SINGLES = 500
ROWS = ("produce", "java", "consume", "raw", "singles", "crowd")


class Rows:
    """Rows that write, each turn to a new topic."""

    def __init__(self, contest: Duel, page_cache: PageCache) -> None:
        self._contest = contest
        self._page_cache = page_cache

    def measure(
        self, row: str, replication_factor: int, action: Callable[[str, str], Figures]
    ) -> None:
        """Run a row; the action gets the bootstrap servers and the topic.

        Topics are deleted after the last turn, because a deletion leaves memory free that the
        next turn would have to get back from the host.
        """
        topics: list[tuple[str, str]] = []

        def turn(bootstrap: str) -> Figures:
            topic = load.topic_of(bootstrap, replication_factor)
            topics.append((bootstrap, topic))
            return action(bootstrap, topic)

        self._contest.measure(row, turn, self._page_cache.fill)
        for bootstrap, topic in topics:
            load.delete_topic(bootstrap, topic)


def measure(contest: Duel, page_cache: PageCache, rows: list[str], seconds: float) -> None:
    """Warm up, and take all rows."""
    for bootstrap in contest.bootstrap.values():
        for replication_factor in (1, 3):
            topic = load.topic_of(bootstrap, replication_factor)
            load.produce_for(bootstrap, topic, 3, "all")
            load.delete_topic(bootstrap, topic)
    in_new_topics = Rows(contest, page_cache)
    if "produce" in rows:
        for replication_factor in (1, 3):
            for acks in ("1", "all"):
                in_new_topics.measure(
                    f"produce, RF {replication_factor}, acks={acks}",
                    replication_factor,
                    lambda at, topic, acks=acks: load.rate(
                        *load.produce_for(at, topic, seconds, acks)
                    ),
                )
    if "raw" in rows:
        for replication_factor in (1, 3):
            in_new_topics.measure(
                f"produce without a client, RF {replication_factor}, acks=all",
                replication_factor,
                lambda at, topic: load.raw_produce(at, topic, seconds),
            )
    if "java" in rows:
        for replication_factor in (1, 3):
            in_new_topics.measure(
                f"produce, Java, RF {replication_factor}, acks=all",
                replication_factor,
                lambda at, topic: load.java_produce(at, topic, JAVA_RECORDS, "all"),
            )
    if "consume" in rows:
        filled = {at: load.fill(at, CONSUMED) for at in contest.bootstrap.values()}
        contest.measure("consume", lambda at: load.consume(at, filled[at], CONSUMED))
        if "java" in rows:
            contest.measure("consume, Java", lambda at: load.java_consume(at, filled[at], CONSUMED))
        if "raw" in rows:
            contest.measure(
                "consume without a client", lambda at: load.raw_consume(at, filled[at], CONSUMED)
            )
    if "singles" in rows:
        in_new_topics.measure(
            "one record at a time, RF 3, acks=all",
            3,
            lambda at, topic: load.one_at_a_time(at, topic, SINGLES),
        )
    if "crowd" in rows:
        in_new_topics.measure(
            "ten producers beside 100 idle connections, RF 3, acks=all",
            3,
            lambda at, topic: load.crowd(at, topic, seconds),
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
    config = {"log.retention.check.interval.ms": 60_000}
    with (
        tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory,
        duel(options.rounds, config) as contest,
    ):
        contest.note_memory("idle")
        measure(contest, PageCache(Path(directory)), rows, options.seconds)
        contest.note_memory("after the load")


if __name__ == "__main__":
    main()
