"""Transactions in the API: which there are, what they hold, which hang, and the end of one."""

import time
from dataclasses import asdict
from typing import Any, Final

from starlette.requests import Request

from klamm.client import transactions
from klamm.console.requests import number_in, parse_number, route, text_in
from klamm.console.session import Session
from klamm.names import TopicPartition

#: As `klamm transactions hanging --max-transaction-timeout` has it, in minutes.
_TIMEOUT_MINUTES: Final = "15"


def list_transactions(session: Session, request: Request, _: Any) -> Any:
    """As `klamm transactions list --json`."""
    states = request.query_params.getlist("state")
    found = transactions.list_transactions(session.online()[0], states)
    return [asdict(each) for each in found]


def describe(session: Session, request: Request, _: Any) -> Any:
    """As `klamm transactions describe ID --json`."""
    return transactions.describe(session.online()[0], request.path_params["id"]).describe()


def hanging(session: Session, request: Request, _: Any) -> Any:
    """As `klamm transactions hanging --json`."""
    admin, _watch = session.online()
    query = request.query_params
    names = transactions.partitions_of(admin, query.get("topic") or None)
    minutes = parse_number(query.get("minutes") or _TIMEOUT_MINUTES, "minutes")
    now_ms = int(time.time() * 1000)
    found = transactions.find_hanging(admin, names, minutes * 60_000, now_ms)
    return [asdict(each) for each in found]


def abort(session: Session, request: Request, body: Any) -> Any:
    """As `klamm transactions abort`."""
    admin, _watch = session.online()
    name = TopicPartition(text_in(body, "topic"), number_in(body, "partition"))
    return asdict(transactions.abort(admin, name, number_in(body, "start_offset")))


ROUTES: Final = [
    route("/api/transactions", list_transactions),
    route("/api/transactions/{id:path}", describe),
    route("/api/hanging", hanging),
    route("/api/transactions/abort", abort, method="POST", changes=True),
]
