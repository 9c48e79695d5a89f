"""ISR changes: those that leaders propose, and those that older leaders report."""

import numpy as np

from klamm.core.batch import BrokerRequestBatch
from klamm.core.cluster import LeaderAndIsrs
from klamm.core.columns import padded, unpad
from klamm.core.context import Context, Level, LoggerName
from klamm.core.effects import (
    DecisionReason,
    DropIsrNotifications,
    Procedure,
    ReadIsrNotifications,
    ReadStates,
    Respond,
    StatesRead,
    WriteOutcome,
    WriteOutcomes,
    WriteStates,
)
from klamm.core.elections import RECOVERING
from klamm.core.events import AlterPartition, ControllerError, PartitionProposal, ProposalResult
from klamm.core.procedures.reassignment import complete_reassignments
from klamm.errors import FencedError
from klamm.names import TopicPartition


def on_alter_partition(ctx: Context, event: AlterPartition) -> Procedure[None]:
    """Write the ISRs that a leader proposes, update all brokers, and respond (ISR-8..22)."""
    cluster = ctx.cluster
    broker = cluster.brokers.get(event.broker)
    if broker is None or broker.epoch != event.broker_epoch:
        yield Respond((ControllerError.STALE_BROKER_EPOCH, []))
        return
    results: list[ProposalResult] = []
    found: dict[int, PartitionProposal] = {}
    for proposal in event.proposals:
        row, error = _row_of(ctx, proposal)
        if row is None:
            results.append(ProposalResult(proposal, error))
        else:
            found[row] = proposal
    judged = {row: _judge(ctx, row, proposal, event) for row, proposal in found.items()}
    news = {row: found[row] for row, verdict in judged.items() if verdict is None}
    verdicts = {row: verdict for row, verdict in judged.items() if verdict is not None}
    verdicts |= yield from _write(ctx, news)
    for row, proposal in found.items():
        good = verdicts[row] == ControllerError.NONE
        results.append(
            _result(ctx, row, proposal) if good else ProposalResult(proposal, verdicts[row])
        )
    batch = BrokerRequestBatch(cluster)
    batch.update_metadata(np.array(sorted(found), np.int32))
    yield from batch.send()
    yield Respond((ControllerError.NONE, results))
    yield from complete_reassignments(
        ctx, [row for row in found if verdicts[row] == ControllerError.NONE]
    )


def _row_of(ctx: Context, proposal: PartitionProposal) -> tuple[int | None, ControllerError]:
    """Where the partition is, or else why it cannot be found (ISR-10, ISR-12)."""
    cluster = ctx.cluster
    topic = proposal.topic
    if proposal.topic_id is not None:
        topic = cluster.topic_names.get(proposal.topic_id)
        if topic is None:
            return None, ControllerError.UNKNOWN_TOPIC_ID
    row = None if topic is None else cluster.row(topic, proposal.partition)
    return row, ControllerError.UNKNOWN_TOPIC_OR_PARTITION


def _judge(
    ctx: Context, row: int, proposal: PartitionProposal, event: AlterPartition
) -> ControllerError | None:
    """Check a proposal: an error, NONE if nothing changes, or None if it has to be written."""
    cluster = ctx.cluster
    leader_epoch = int(cluster.leader_epoch[row])
    partition_epoch = int(cluster.partition_epoch[row])
    recovery = int(cluster.recovery[row])
    is_leader = cluster.leader[row] == event.broker
    if not cluster.has_leadership[row]:
        return ControllerError.UNKNOWN_TOPIC_OR_PARTITION
    if proposal.partition_epoch > partition_epoch or proposal.leader_epoch > leader_epoch:
        # The leader knows a newer epoch: another controller has probably been elected.
        return ControllerError.NOT_CONTROLLER
    if proposal.leader_epoch < leader_epoch:
        return ControllerError.FENCED_LEADER_EPOCH
    is_known = list(proposal.isr) == unpad(cluster.isr[row]) and proposal.recovery == recovery
    if is_leader and is_known:
        return ControllerError.NONE
    if proposal.partition_epoch < partition_epoch:
        return ControllerError.INVALID_UPDATE_VERSION
    starts_recovering = proposal.recovery == RECOVERING and recovery != RECOVERING
    if starts_recovering or (proposal.recovery == RECOVERING and len(proposal.isr) > 1):
        return ControllerError.INVALID_REQUEST
    if not cluster.live.issuperset(proposal.isr):
        return (
            ControllerError.INELIGIBLE_REPLICA
            if event.version > 1
            else ControllerError.OPERATION_NOT_ATTEMPTED
        )
    if not is_leader or not proposal.isr:
        # Stricter than the reference, where a stranger with the right epochs becomes the leader
        # and an ISR may be emptied (ISR-21).
        return ControllerError.INVALID_REQUEST
    return None


def _write(
    ctx: Context, news: dict[int, PartitionProposal]
) -> Procedure[dict[int, ControllerError]]:
    """Write proposals that passed, each on condition of the version that it names."""
    if not news:
        return {}
    cluster = ctx.cluster
    rows = np.array(sorted(news), np.int32)
    known = cluster.leadership(rows)
    decided = LeaderAndIsrs(
        row=rows,
        leader=known.leader,
        leader_epoch=known.leader_epoch,
        isr=padded([news[row].isr for row in rows.tolist()]),
        recovery=np.array([news[row].recovery for row in rows.tolist()], np.int8),
        controller_epoch=known.controller_epoch,
        version=np.array([news[row].partition_epoch for row in rows.tolist()], np.int32),
    ).decided_in(cluster.controller_epoch)
    outcomes: WriteOutcomes = yield WriteStates(decided, DecisionReason.ISR_CHANGE)
    cluster.record_leadership(decided.at(outcomes == WriteOutcome.DONE).accepted())
    return {
        row: _CODE.get(outcome, ControllerError.UNKNOWN_SERVER_ERROR)
        for row, outcome in zip(rows.tolist(), outcomes.tolist(), strict=True)
    }


_CODE = {
    WriteOutcome.DONE: ControllerError.NONE,
    WriteOutcome.BAD_VERSION: ControllerError.INVALID_UPDATE_VERSION,
    WriteOutcome.NO_NODE: ControllerError.UNKNOWN_TOPIC_OR_PARTITION,
}


def _result(ctx: Context, row: int, proposal: PartitionProposal) -> ProposalResult:
    """The state of a partition whose proposal was accepted."""
    cluster = ctx.cluster
    return ProposalResult(
        proposal,
        ControllerError.NONE,
        leader=int(cluster.leader[row]),
        leader_epoch=int(cluster.leader_epoch[row]),
        isr=tuple(unpad(cluster.isr[row])),
        recovery=int(cluster.recovery[row]),
        partition_epoch=int(cluster.partition_epoch[row]),
    )


def on_isr_change_notification(ctx: Context) -> Procedure[None]:
    """Learn of ISRs that leaders have written themselves, and pass them on (ISR-2..7)."""
    names, partitions = yield ReadIsrNotifications()
    if not names:
        return
    drop = DropIsrNotifications(names)
    try:
        yield from _refresh(ctx, partitions)
    except FencedError:
        raise
    except Exception:
        yield drop
        raise
    yield drop


def _refresh(ctx: Context, partitions: set[TopicPartition]) -> Procedure[None]:
    cluster = ctx.cluster
    found = (cluster.row(*tp) for tp in partitions)
    rows = np.array(sorted(row for row in found if row is not None), np.int32)
    if not len(rows):
        return
    reply: StatesRead = yield ReadStates(rows)
    cluster.record_leadership(reply.states.at(reply.found))
    ctx.say_of(LoggerName.CONTROLLER, Level.TRACE, rows, "leaders changed the ISRs of partitions")
    batch = BrokerRequestBatch(cluster)
    batch.update_metadata(rows)
    yield from batch.send()
    yield from complete_reassignments(ctx, rows.tolist())
