"""An event as rows: its header, its decisions, and the step that a partition takes with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class Header:
    """The columns that all rows of an event share."""

    at: int
    arrived_at: int
    announced_at: int | None
    controller_epoch: int
    seq: int
    cause: str
    term: str | None
    #: When each broker that the event found lost was last known to be alive.
    alive_at: Mapping[int, int]
    #: The same for a broker that a new controller does not find, as far as it can know.
    alive_at_default: int | None
    takeover_us: int

    @classmethod
    def of(cls, record: Row) -> "Header":
        """The header of a record with times in microseconds."""
        at, after = record["at"], record["announced_after_us"]
        announced_at = None
        if after is not None:
            announced_at = at + after
        elif record["outcome"] == "done":
            announced_at = at + record["total_us"]
        arrived_at = at - record["queued_us"]
        timeout_ms = record["session_timeout_ms"]
        is_known = record["term"] == "began" and timeout_ms is not None
        return cls(
            at=at,
            arrived_at=arrived_at,
            announced_at=announced_at,
            controller_epoch=record["controller_epoch"],
            seq=record["seq"],
            cause=record["cause"],
            term=record["term"],
            alive_at={each["broker"]: each["alive_at"] for each in record["lost"]},
            alive_at_default=arrived_at - timeout_ms * 1000 if is_known else None,
            takeover_us=record["total_us"],
        )

    def last_alive(self, broker: int) -> int | None:
        """When the lost leader was last known to be alive; None if nothing is known of it."""
        return None if broker < 0 else self.alive_at.get(broker, self.alive_at_default)


def decision_row(header: Header, part: int, decision: Row) -> Row:
    """A row of `decisions`."""
    event = {"controller_epoch": header.controller_epoch, "seq": header.seq}
    return {
        **decision,
        **event,
        "at": header.at,
        "arrived_at": header.arrived_at,
        "announced_at": header.announced_at,
        "order": {**event, "part": part, "place": decision["place"]},
        "cause": header.cause,
        "alive_at": header.last_alive(decision["old_leader"]),
    }


def step_row(header: Header, done: Sequence[Row]) -> Row:
    """The row of the timeline that begins with an event's decisions about a partition."""
    first, last = done[0], done[-1]
    state = last["state"]
    if last["leader"] >= 0:
        state = "online"
    elif state == "non_existent":
        state = "deleting"
    return {
        "from": header.at,
        "until": None,
        "leader": last["leader"],
        "leader_epoch": last["leader_epoch"],
        "isr": last["isr"],
        "replicas": last["replicas"],
        "state": state,
        "kinds": [each["kind"] for each in done],
        "cause": header.cause,
        "old_leader": first["old_leader"],
        "old_leader_epoch": first["old_leader_epoch"],
        "arrived_at": header.arrived_at,
        "announced_at": header.announced_at,
        "alive_at": header.last_alive(first["old_leader"]),
        "topic_ended": False,
        "controller_epoch": header.controller_epoch,
        "seq": header.seq,
    }
