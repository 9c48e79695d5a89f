"""Which of two ways reads: klamm's own client, or librdkafka.

klamm's own way makes columns of whole responses and costs a fraction for each record, but does not
do everything that a client can be told. Where the options ask for more, librdkafka reads.
"""

from collections.abc import Mapping
from typing import Final

from klamm.net.librdkafka import SECURITY_SETTINGS, security_from_librdkafka
from klamm.pipeline.source.telling import tell

#: What klamm's own way does justice to, besides security of the usual kinds.
HONOURED: Final = frozenset(
    {"bootstrap.servers", "check.crcs", "client.id", "fetch.max.bytes", "fetch.wait.max.ms"}
    | {"fetch.min.bytes", "isolation.level", "max.partition.fetch.bytes", "socket.timeout.ms"}
)
#: Settings without effect here: the source joins no group and reads given ranges.
_WITHOUT_EFFECT: Final = frozenset(
    {"allow.auto.create.topics", "auto.offset.reset", "enable.auto.commit", "group.id"}
    | {"enable.auto.offset.store", "enable.partition.eof", "heartbeat.interval.ms", "log_level"}
    | {"group.instance.id", "max.poll.interval.ms", "metadata.max.age.ms", "session.timeout.ms"}
)


def beyond_own_client(kafka: Mapping[str, str]) -> list[str]:
    """The settings that klamm's own client does not do justice to."""
    beyond = set(kafka) - HONOURED - _WITHOUT_EFFECT
    if not beyond - SECURITY_SETTINGS and security_from_librdkafka(kafka) is not None:
        return []
    return sorted(beyond)


def own_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """The settings that klamm's own client looks at."""
    return {
        key: value for key, value in kafka.items() if key in HONOURED or key in SECURITY_SETTINGS
    }


def can_fetch(kafka: Mapping[str, str]) -> bool:
    """Whether klamm's own client does everything that the options ask for."""
    return not beyond_own_client(kafka)


def tell_path(kafka: Mapping[str, str]) -> None:
    """Say which way reads, and why it is not the quicker one."""
    reasons = beyond_own_client(kafka)
    if reasons:
        names = ", ".join(f"kafka.{name}" for name in reasons)
        tell("librdkafka reads, because klamm's own client does not know %s", names)
    else:
        tell("klamm's own client reads")
