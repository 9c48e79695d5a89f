"""What brokers were asked, and what became of transactional ids, in plain sentences."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.errors import KlammError
from klamm.history.broker_history import (
    BrokerRow,
    brokers_topic,
    in_order,
    read_broker_spool,
    read_lines,
)

_REQUEST: Final = "request"
_TRANSACTION: Final = "transaction"


def read_broker_rows(
    spools: Sequence[Path],
    bootstrap_servers: str,
    history_topic: str,
    security: ClientSecurity = PLAINTEXT,
) -> list[BrokerRow]:
    """The records of all brokers, from spools or else from the topic; none if it does not exist."""
    if spools:
        return in_order(row for directory in spools for row in read_broker_spool(directory))
    from klamm.history.topic import NoHistoryTopicError, read_values

    topic = brokers_topic(history_topic)
    try:
        values = list(read_values(bootstrap_servers, topic, security))
    except NoHistoryTopicError:
        return []
    return in_order(row for value, _ in values for row in read_lines(value or b""))


# Administrative requests


def requests_about(rows: Iterable[BrokerRow], topic: str | None = None) -> list[dict[str, Any]]:
    """The administrative requests with their sentences; with a topic only those about it."""
    return [
        row | {"text": _head(row) + request_sentence(row, topic)}
        for row in rows
        if row["kind"] == _REQUEST and (topic is None or _names(row, topic))
    ]


def request_sentence(row: BrokerRow, topic: str | None = None) -> str:
    """The requester, the request and its result; with a topic, only the part about the topic."""
    subjects = [
        f"{each['type']} {each['name']}".strip()
        + (f" ({each['wanted']})" if each["wanted"] else "")
        for each in row["subjects"]
        if topic is None or (each["type"], each["name"]) == ("topic", topic)
    ]
    # Records of earlier versions name everything.
    if topic is None and (left_out := row.get("left_out", 0)):
        subjects.append(f"and {left_out} more")
    asked = f"{_who(row)} asked for {row['api']}: {'; '.join(subjects) or 'nothing'}"
    if row["is_trial"]:
        asked += ", as a trial"
    refused = [
        f"{each['error']} ({each['name']})" if each["name"] else each["error"]
        for each in row["errors"]
        if topic is None or not each["name"] or _is_about(each["name"], topic)
    ]
    if refused:
        asked += f"; refused: {', '.join(refused)}"
    return asked + "."


def _names(row: BrokerRow, topic: str) -> bool:
    return any((each["type"], each["name"]) == ("topic", topic) for each in row["subjects"])


def _is_about(name: str, topic: str) -> bool:
    return name == topic or name.rpartition("-")[0] == topic


# Transactional ids


def transaction_story(rows: Iterable[BrokerRow], transactional_id: str) -> list[dict[str, Any]]:
    """The events of the id in order; KlammError if the history has none."""
    found = [
        row
        for row in rows
        if row["kind"] == _TRANSACTION and row["transactional_id"] == transactional_id
    ]
    if not found:
        raise KlammError(
            f"The history says nothing about the transactional id {transactional_id!r}."
        )
    # A later coordinator has a higher epoch, whatever the clocks of both say.
    found.sort(key=lambda row: (row["coordinator_epoch"], row["at"], row["seq"]))
    return [row | {"text": text} for row, text in zip(found, _sentences(found), strict=True)]


def _sentences(rows: Iterable[BrokerRow]) -> Iterator[str]:
    holder = ""  # the producer that was given the id last, until it is fenced
    coordinator = None
    for row in rows:
        said = _transition(row, holder)
        if coordinator not in (None, row["broker"]) and row["what"] != "loaded":
            said = f"broker {row['broker']} is the coordinator now; {said}"
        yield _head(row) + said + "."
        coordinator = row["broker"]
        if row["what"] == "initialized":
            holder = _producer(row)
        elif row["what"] in ("fenced", "timed_out"):
            holder = ""


def _transition(row: BrokerRow, holder: str) -> str:
    partitions = ", ".join(row["partitions"]) or "no partition"
    outcome = "commit" if "Commit" in row["state"] else "abort"
    match row["what"]:
        case "initialized":
            is_new = holder not in ("", _producer(row))
            fenced = f"; {holder} is fenced" if is_new else ""
            return f"{_who(row)} was given {_producer(row)}{fenced}"
        case "began":
            return f"{_who(row)} began a transaction with {partitions}"
        case "added":
            return f"{_who(row)} added {partitions}"
        case "decided":
            return f"{_who(row)} asked to {outcome}: {partitions}"
        case "fenced":
            return (
                f"the transaction is aborted, because {_who(row)} asked for the id; "
                f"{holder or 'its producer'} is fenced: {partitions}"
            )
        case "timed_out":
            return (
                f"the transaction is aborted, because it was open for longer than "
                f"{row['timeout_ms']} ms; {holder or 'its producer'} is fenced: {partitions}"
            )
        case "completed":
            return f"all markers are written, the {outcome} is complete"
        case "refused":
            return f"{_who(row)} was refused as fenced ({row['api']}): {_producer(row)} has the id"
        case "loaded":
            return (
                f"broker {row['broker']} became the coordinator and found the transaction "
                f"{row['state']}: {partitions}"
            )
        case "expired":
            return "the id was idle for too long and is removed"
    raise KlammError(f"{row['what']!r} is not known here: a newer klamm has written it.")


def _producer(row: BrokerRow) -> str:
    return f"producer id {row['producer_id']} with epoch {row['producer_epoch']}"


def _head(row: BrokerRow) -> str:
    """Time and broker, as the sentences about partitions have time and controller epoch."""
    at = str(row["at"]).replace("T", " ")[:23]
    return f"{at} broker {row['broker']} #{row['seq']}: "


def _who(row: BrokerRow) -> str:
    if not row.get("principal"):
        return "its producer"
    client = f" (client id {row['client_id']})" if row.get("client_id") else ""
    return f"{row['principal']} at {row['address']}{client}"
