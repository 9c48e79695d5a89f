"""A controller by itself, klamm's and, where its jars are to be had, Apache Kafka's: the ratios.

    python -m bench.controller [--topics 100] [--klamm-only] [options of side_by_side.controller]

100 topics of 100 partitions by default; the figures that count are taken with --topics 1000, and
with --topics 10000 --zk-heap 6g --heap 8g.
"""

import json
import os
import subprocess
import sys

from tools.fetch_kafka import libs

STEPS = ("load", "failover1", "failover2", "failure", "return", "shutdown", "create")


def run(implementation: str, options: list[str]) -> dict[str, float]:
    """Seconds for each step, and the memory of the controller's node."""
    command = [sys.executable, "-m", "bench.side_by_side.controller"]
    done = subprocess.run(
        [*command, "--implementation", implementation, *options],
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        check=True,
    )
    found = json.loads(done.stdout)
    seconds = {step: found[step] for step in ("load",)}
    seconds |= {step: found[step]["s"] for step in STEPS[1:]}
    seconds["shutdown"] = found["shutdown"]["response"]["s"]
    return seconds | {"MB": max(found[step]["rss_mb"] for step in STEPS[1:])}


def main() -> None:
    options = sys.argv[1:] or ["--topics", "100"]
    klamm_only = "--klamm-only" in options
    options = [option for option in options if option != "--klamm-only"]
    klamm = run("klamm", options)
    kafka: dict[str, float] = {}
    if not klamm_only:
        os.environ["KAFKA_LIBS"] = str(libs())
        kafka = run("kafka", options)
    print(f"{'step':12}{'klamm':>10}{'kafka':>10}{'ratio':>8}")
    for step, value in klamm.items():
        other = kafka.get(step)
        compared = f"{other:10.2f}{other / max(value, 0.001):7.1f}x" if other else ""
        print(f"{step:12}{value:10.2f}{compared}")


if __name__ == "__main__":
    main()
