"""Which procedure handles which event, and the answers of who is not controller."""

from typing import Any

from klamm.core import events
from klamm.core.codes import Code
from klamm.core.context import Context, Level, Log
from klamm.core.effects import Answer, Procedure
from klamm.core.events import Event
from klamm.core.procedures import brokers, deletion, features, isr, leaders, topics
from klamm.core.procedures import brokers as logdirs
from klamm.core.procedures import brokers as shutdown
from klamm.core.procedures import reassignment as moves
from klamm.errors import FencedError


def handle(ctx: Context, event: Event) -> Procedure[None]:
    """Do what an event asks for. A requester gets an answer also when that fails."""
    try:
        yield from _procedure(ctx, event)
    except Exception as error:
        fallback = _answer_on_failure(event, error)
        if fallback is not None:
            yield Answer(event, fallback)
        raise


def _procedure(ctx: Context, event: Event) -> Procedure[Any]:
    match event:
        case events.BrokerChange():
            return brokers.on_broker_change(ctx)
        case events.BrokerModifications(broker):
            return brokers.on_broker_modifications(ctx, broker)
        case events.TopicChange():
            return topics.on_topic_change(ctx)
        case events.PartitionModifications(topic):
            return topics.on_partition_modifications(ctx, topic)
        case events.TopicDeletion():
            return deletion.on_topic_deletion(ctx)
        case events.StopReplicaAnswered():
            return deletion.on_stop_replica_answered(ctx, event)
        case events.ZkReassignment():
            return moves.take_up_request(ctx)
        case events.ReassignmentIsrChange():
            return moves.on_reassignment_isr_change(ctx, event)
        case events.ApiReassignment():
            return moves.on_api_reassignment(ctx, event)
        case events.ListReassignments():
            return moves.on_list_reassignments(ctx, event)
        case events.ZkPreferredElection():
            return leaders.on_zk_preferred_election(ctx)
        case events.ElectLeaders():
            return leaders.on_elect_leaders(ctx, event)
        case events.AutoRebalance():
            return leaders.on_auto_rebalance(ctx)
        case events.UncleanElectionEnabled():
            return leaders.on_unclean_election_enabled(ctx)
        case events.TopicUncleanElectionEnabled(topic):
            return leaders.on_unclean_election_enabled(ctx, topic)
        case events.ControlledShutdown():
            return shutdown.on_controlled_shutdown(ctx, event)
        case events.UpdateFeatures():
            return features.on_update_features(ctx, event)
        case events.AlterPartition():
            return isr.on_alter_partition(ctx, event)
        case events.IsrChangeNotification():
            return isr.on_isr_change_notification(ctx)
        case events.LogDirEventNotification():
            return logdirs.on_log_dir_notification(ctx)
        case events.LeaderAndIsrAnswered():
            return logdirs.on_leader_and_isr_answered(ctx, event)
        case events.UpdateMetadataAnswered():
            return _on_update_metadata_answered(ctx, event)
    raise TypeError(f"no procedure for {event!r}")


def _on_update_metadata_answered(
    ctx: Context, event: events.UpdateMetadataAnswered
) -> Procedure[None]:
    """An error is worth a line in the log, and nothing else (CHAN-33)."""
    if event.error != Code.NONE:
        text = f"broker {event.broker} answered UpdateMetadata with error {event.error}"
        ctx.say(Log.STATE_CHANGE, Level.ERROR, text)
    yield from ()


def _answer_on_failure(event: Event, error: Exception) -> Any:
    if isinstance(event, events.AlterPartition):
        return Code.UNKNOWN_SERVER_ERROR, []
    if isinstance(error, FencedError):
        return answer_when_not_active(event)
    match event:
        case events.ControlledShutdown():
            return Code.UNKNOWN_SERVER_ERROR, []
        case events.ApiReassignment() | events.ListReassignments() | events.UpdateFeatures():
            return Code.UNKNOWN_SERVER_ERROR, {}
        case events.ElectLeaders(_, partitions):
            return dict.fromkeys(partitions or (), (Code.UNKNOWN_SERVER_ERROR, None, -1))
    return None


def answer_when_not_active(event: Event) -> Any:
    """What a node that is not controller answers (EVT-7); None: nobody waits for an answer."""
    if isinstance(event, events.AlterPartition):
        return Code.NOT_CONTROLLER, []
    if isinstance(event, events.UpdateFeatures):
        return Code.NOT_CONTROLLER, {}
    return answer_when_preempted(event)


def answer_when_preempted(event: Event) -> Any:
    """What is answered for an event that was dropped from the queue (EVT-6); None: nothing."""
    match event:
        case events.ControlledShutdown():
            return Code.STALE_CONTROLLER_EPOCH, []
        case events.ApiReassignment() | events.ListReassignments():
            return Code.NOT_CONTROLLER, {}
        case events.ElectLeaders(_, partitions):
            return dict.fromkeys(partitions or (), (Code.NOT_CONTROLLER, None, -1))
    return None
