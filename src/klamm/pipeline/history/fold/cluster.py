"""What happened to the cluster as a whole, event by event: terms, gaps, brokers, and durations.

The state of a history apart from its topics. It takes every event, in the order of
`(controller_epoch, seq)`; what it keeps is bounded by the numbers of terms, gaps and brokers.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from klamm.history.records import FLAPPING_STARTS, FLAPPING_WINDOW_S, PHASES
from klamm.pipeline.history.fold.distributions import Durations
from klamm.pipeline.history.fold.topics import seconds

Row: TypeAlias = dict[str, Any]
_STARTS: Final = ("present", "started", "bounced")
_GAPS_SHOWN: Final = 100
_TERMS_SHOWN: Final = 200
_SESSIONS_SHOWN: Final = 500


class ClusterHistory:
    """The state, and the rows that were finished since it was loaded."""

    def __init__(self, state: Row | None = None) -> None:
        """`state` is what `to_json` gave."""
        state = state or {}
        #: The term of the last event; its predecessors are finished.
        self.term: Row | None = state.get("term")
        self.takeovers = Durations(state.get("takeovers"))
        #: What a page shows of finished rows: the first gaps, the last terms and registrations.
        self.gaps_shown: list[Row] = list(state.get("gaps_shown", ()))
        self.terms_shown: list[Row] = list(state.get("terms_shown", ()))
        self.sessions_shown: list[Row] = list(state.get("sessions_shown", ()))
        self.counts: Counter[str] = Counter(state.get("counts", {}))
        #: The last registration of each broker.
        self.sessions: dict[int, Row] = {each["broker"]: each for each in state.get("sessions", ())}
        self.flapping: dict[int, Row] = {each["broker"]: each for each in state.get("flapping", ())}
        self.phases = {(each[0], each[1]): Durations(each[2]) for each in state.get("phases", ())}
        self.history_from: int | None = state.get("history_from")
        self.history_until: int | None = state.get("history_until")
        #: Finished rows by table.
        self.rows: dict[str, list[Row]] = {}

    def to_json(self) -> Row:
        """The state, without the rows."""
        return {
            "term": self.term,
            "takeovers": self.takeovers.to_json(),
            "gaps_shown": self.gaps_shown,
            "terms_shown": self.terms_shown,
            "sessions_shown": self.sessions_shown,
            "counts": self.counts,
            "sessions": list(self.sessions.values()),
            "flapping": list(self.flapping.values()),
            "phases": [[*key, each.to_json()] for key, each in self.phases.items()],
            "history_from": self.history_from,
            "history_until": self.history_until,
        }

    def apply(self, parts: Sequence[Row]) -> None:
        """Apply one event, whose parts come in order."""
        header = parts[0]
        at = header["at"]
        self.counts["events"] += 1
        self.history_from = at if self.history_from is None else min(self.history_from, at)
        self.history_until = at if self.history_until is None else max(self.history_until, at)
        is_whole = len(parts) == header["parts"]
        self._put(
            "events",
            header
            | {
                "decisions": sum(part["decision_count"] for part in parts),
                "is_whole": is_whole,
            },
        )
        self._note_gaps(header, is_whole=is_whole)
        self._note_term(header)
        for part in parts:
            for change in part["broker_changes"]:
                self._broker_changed(header, change)
        if header["term"] == "began":
            for session in self.sessions.values():
                if (
                    session["next_term"] is None
                    and session["last_epoch"] < header["controller_epoch"]
                ):
                    session["next_term"] = at
        for name in PHASES:
            if header[name] is not None:
                key = (header["kind"], name.removesuffix("_us"))
                self.phases.setdefault(key, Durations()).add(header[name])

    def shown_terms(self) -> list[Row]:
        """The last terms, the present one included."""
        return self.terms_shown + self.open_rows()["controller_terms"]

    def shown_sessions(self) -> list[Row]:
        """The last registrations of brokers, the present ones included."""
        return self.sessions_shown + self.open_rows()["broker_sessions"]

    def open_rows(self) -> dict[str, list[Row]]:
        """Rows of open intervals, and of counts, as of now."""
        return {
            "controller_terms": [] if self.term is None else [_term_row(self.term, None)],
            "broker_sessions": [_session_row(each, None) for each in self.sessions.values()],
            "flapping_brokers": self._flapping_rows(),
        }

    def _note_gaps(self, header: Row, *, is_whole: bool) -> None:
        epoch, seq, at = header["controller_epoch"], header["seq"], header["at"]
        before, last_seq, after = self.term, 0, None
        if before is not None and before["controller_epoch"] == epoch:
            last_seq, after = before["last_seq"], before["last_at"]
        elif before is not None:
            for missing in range(before["controller_epoch"] + 1, epoch):
                self._put_gap(missing, 1, None, "epoch", before["last_at"], at)
        if seq > last_seq + 1:
            self._put_gap(epoch, last_seq + 1, seq - 1, "events", after, at)
        if not is_whole:
            self._put_gap(epoch, seq, seq, "parts", at, at)

    def _put_gap(
        self, epoch: int, first: int, last: int | None, missing: str, after: int | None, before: int
    ) -> None:
        gap = {
            "controller_epoch": epoch,
            "first_seq": first,
            "last_seq": last,
            "missing": missing,
            "after": after,
            "before": before,
        }
        self._put("gaps", gap)
        self.counts["gaps"] += 1
        if len(self.gaps_shown) < _GAPS_SHOWN:
            self.gaps_shown.append(gap)

    def _note_term(self, header: Row) -> None:
        epoch, at = header["controller_epoch"], header["at"]
        ended_at = at + header["total_us"]
        term = self.term
        if term is None or term["controller_epoch"] != epoch:
            self.counts["terms"] += 1
            if term is not None:
                row = _term_row(term, at)
                self._put("controller_terms", row)
                self.terms_shown = [*self.terms_shown, row][-_TERMS_SHOWN:]
            term = self.term = {
                "controller_epoch": epoch,
                "controller": header["controller"],
                "from": at,
                "ended_at": None,
                "cause": None,
                "announced_at": None,
                "takeover_us": None,
                "events": 0,
            }
        term["events"] += 1
        term["last_seq"] = header["seq"]
        term["last_at"] = at
        term["last_event_at"] = ended_at
        if header["term"] == "ended":
            term["ended_at"] = max(term["ended_at"] or ended_at, ended_at)
            term["cause"] = header["cause"]
        elif header["term"] == "began":
            after = header["announced_after_us"]
            term["announced_at"] = None if after is None else at + after
            term["takeover_us"] = header["total_us"]
            self.takeovers.add(header["total_us"])

    def _broker_changed(self, header: Row, change: Row) -> None:
        broker, kind, at = change["broker"], change["change"], header["at"]
        if change["epoch"] < 0:
            return
        session = self.sessions.get(broker)
        if session is None or session["epoch"] != change["epoch"]:
            if session is not None:
                row = _session_row(session, at if kind in _STARTS else None)
                self._put("broker_sessions", row)
                self.sessions_shown = [*self.sessions_shown, row][-_SESSIONS_SHOWN:]
                counted = self.flapping.setdefault(broker, _never_seen(broker))
                _add_session(counted, row)
            session = self.sessions[broker] = {
                "broker": broker,
                "epoch": change["epoch"],
                "from": None,
                "start": None,
                "failed_at": None,
                "shutting_down_at": None,
            }
        session["last_epoch"] = header["controller_epoch"]
        session["next_term"] = None
        if kind in _STARTS:
            if session["from"] is None:
                session["from"], session["start"] = at, kind
        else:
            column = "failed_at" if kind == "failed" else "shutting_down_at"
            session[column] = at if session[column] is None else min(session[column], at)

    def _flapping_rows(self) -> list[Row]:
        rows = []
        for broker, session in self.sessions.items():
            counted = self.flapping.get(broker) or _never_seen(broker)
            row = {**counted, "recent": list(counted["recent"])}
            _add_session(row, _session_row(session, None))
            row["is_flapping"] = row["starts_within_window"] >= FLAPPING_STARTS
            rows.append(row)
        return rows

    def _put(self, table: str, row: Row) -> None:
        self.rows.setdefault(table, []).append(row)


def _term_row(term: Row, next_from: int | None) -> Row:
    """A row of a term; one whose end was not recorded lasts until the next."""
    until = next_from if term["ended_at"] is None else term["ended_at"]
    end = "ended" if term["ended_at"] is not None else None if next_from is None else "replaced"
    return {
        **term,
        "until": None if until is None else max(term["from"], until),
        "end": end,
        "missing_events": term["last_seq"] - term["events"],
    }


def _session_row(session: Row, next_from: int | None) -> Row:
    failed_at, next_term, start = session["failed_at"], session["next_term"], session["from"]
    until: int | None = failed_at
    end: str | None = None
    if failed_at is not None:
        end = "failed" if session["shutting_down_at"] is None else "shut_down"
    elif next_from is not None and (next_term is None or next_from <= next_term):
        until, end = next_from, "bounced"
    elif next_term is not None:
        # A controller that shuts down is gone before it could say so.
        until, end = next_term, "unseen" if session["shutting_down_at"] is None else "shut_down"
    if until is not None and start is not None:
        until = max(start, until)
    return {**session, "until": until, "end": end, "seconds": seconds(start, until)}


def _never_seen(broker: int) -> Row:
    return {
        "broker": broker,
        "sessions": 0,
        "failed": 0,
        "shut_down": 0,
        "otherwise_gone": 0,
        "failures": 0,
        "shortest_seconds": None,
        "starts_within_window": 0,
        "recent": [],
    }


def _add_session(counted: Row, row: Row) -> None:
    counted["sessions"] += 1
    counted["failures"] += row["end"] is not None and row["shutting_down_at"] is None
    match row["end"]:
        case "failed" | "shut_down" as end:
            counted[end] += 1
        case "bounced" | "unseen":
            counted["otherwise_gone"] += 1
    if row["seconds"] is not None:
        shortest = counted["shortest_seconds"]
        counted["shortest_seconds"] = (
            row["seconds"] if shortest is None else min(shortest, row["seconds"])
        )
    if row["from"] is not None:
        second = row["from"] // 1_000_000
        recent = [each for each in counted["recent"] if each >= second - FLAPPING_WINDOW_S]
        if row["start"] in ("started", "bounced"):
            recent.append(second)
        counted["recent"] = recent
        counted["starts_within_window"] = max(counted["starts_within_window"], len(recent))
