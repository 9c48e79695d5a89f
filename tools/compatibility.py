"""Which requests and settings of Kafka 3.9 klamm knows, as the code has it.

The tables stand in docs/compatibility.md below what is written there by hand.

python tools/compatibility.py            print the tables
python tools/compatibility.py --write    put them into docs/compatibility.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Final

from klamm.config.broker import KEYS_WITH_EFFECT
from klamm.config.broker_keys import KEYS
from klamm.config.definitions import Key, UpdateMode
from klamm.config.topic_keys import TOPIC_KEYS
from klamm.config.topics import TopicConfig
from klamm.protocol.apis import APIS, UNADVERTISED

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "compatibility.md"
#: Everything above this line of the page is written by hand.
_FROM_HERE_ON: Final = "<!-- The rest is made by `make docs` from the code. -->"
#: Read where replicas are throttled, or as what other keys fall back to.
_READ_ELSEWHERE: Final = frozenset(
    {key for key in TOPIC_KEYS if key.endswith(".throttled.replicas")}
    | {"message.timestamp.difference.max.ms"}
)
_MODES: Final = {
    UpdateMode.READ_ONLY: "at start",
    UpdateMode.PER_BROKER: "per broker",
    UpdateMode.CLUSTER_WIDE: "cluster-wide",
}


def main() -> None:
    page = "\n".join(lines()) + "\n"
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8")
        print(f"{PAGE.relative_to(ROOT)} is up to date")
    else:
        print(page, end="")


def lines() -> Iterator[str]:
    """The whole page."""
    by_hand, found, _ = PAGE.read_text(encoding="utf-8").partition(_FROM_HERE_ON)
    assert found, f"{PAGE.name} has no line {_FROM_HERE_ON}"
    yield from (by_hand + found).splitlines()
    yield ""
    yield "## Requests"
    yield ""
    yield "What ApiVersions offers, apart from what is answered only if it is asked for anyway."
    yield "Flexible versions have compact lengths and tagged fields."
    yield ""
    yield from table(
        ("key", "request", "versions", "flexible from"),
        (
            (
                str(api.key.value),
                api.name + (" (not offered)" if api.key in UNADVERTISED else ""),
                f"{api.min_version} to {api.max_version}",
                str(api.first_flexible) if api.first_flexible <= api.max_version else "-",
            )
            for api in APIS.values()
        ),
    )
    broker = [key for key in KEYS.values() if not key.internal]
    yield ""
    yield "## Settings of brokers"
    yield ""
    yield "These take effect; `changes` says whether they can be changed while a broker runs."
    yield ""
    yield from settings(key for key in broker if key.name in KEYS_WITH_EFFECT)
    idle = sorted(key.name for key in broker if key.name not in KEYS_WITH_EFFECT)
    yield ""
    yield f"{len(idle)} more keys of Kafka's are known. One that promises protection refuses the"
    yield "start, unless its value switches the promise off; the others have no effect."
    yield "`max.request.partition.size.limit` is one of them: it bounds DescribeTopicPartitions,"
    yield "which only KRaft brokers of Kafka offer. In ZooKeeper mode it has nothing to bound."
    yield ""
    yield "## Settings of topics"
    yield ""
    effective = {each.name.replace("_", ".") for each in fields(TopicConfig)} | _READ_ELSEWHERE
    yield from settings(key for key in TOPIC_KEYS.values() if key.name in effective)
    yield ""
    yield "Accepted without effect: " + ", ".join(
        f"`{name}`" for name in sorted(set(TOPIC_KEYS) - effective)
    )


def settings(keys: Iterable[Key]) -> Iterator[str]:
    """A table of keys."""
    return table(
        ("key", "type", "default", "changes"),
        (
            (f"`{key.name}`", key.type.name.lower(), _default(key), _MODES[key.mode])
            for key in sorted(keys, key=lambda key: key.name)
        ),
    )


def table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Rows in Markdown."""
    yield f"| {' | '.join(headings)} |"
    yield f"|{' --- |' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _default(key: Key) -> str:
    if key.default is None:
        return "-"
    return f"`{key.default}`" if key.default else "empty"


if __name__ == "__main__":
    main()
