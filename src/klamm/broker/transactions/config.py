"""The settings of the transaction coordinator, with Kafka's defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Limits and intervals; each field names the broker setting that it comes from."""

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    id_expiration_ms: int = 604_800_000  # transactional.id.expiration.ms
    #: transaction.abort.timed.out.transaction.cleanup.interval.ms
    abort_timed_out_interval_ms: int = 10_000
    #: transaction.remove.expired.transaction.cleanup.interval.ms
    remove_expired_interval_ms: int = 3_600_000
    request_timeout_ms: int = 30_000  # request.timeout.ms, for the appends of tombstones
    #: Whether what becomes of transactions is noted: not without a history.
    is_noted: bool = False
