"""Which procedure handles which event, and the responses of a node that is not controller."""

from typing import Any

from klamm.core import events
from klamm.core.context import Context, Level, LoggerName
from klamm.core.effects import Procedure, Respond
from klamm.core.events import ControllerError, Event
from klamm.core.procedures import brokers, deletion, features, isr, leaders, reassignment, topics
from klamm.errors import FencedError


def handle(ctx: Context, event: Event) -> Procedure[None]:
    """Handle an event. If that fails, the requester still gets a response."""
    try:
        yield from _procedure(ctx, event)
    except Exception as error:
        fallback = _failure_response(event, error)
        if fallback is not None:
            yield Respond(fallback)
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
        case events.StopReplicaResponseReceived():
            return deletion.on_stop_replica_response(ctx, event)
        case events.ZkReassignment():
            return reassignment.on_zk_reassignment(ctx)
        case events.ReassignmentIsrChange():
            return reassignment.on_reassignment_isr_change(ctx, event)
        case events.ApiReassignment():
            return reassignment.on_api_reassignment(ctx, event)
        case events.ListReassignments():
            return reassignment.on_list_reassignments(ctx, event)
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
            return brokers.on_controlled_shutdown(ctx, event)
        case events.UpdateFeatures():
            return features.on_update_features(ctx, event)
        case events.AlterPartition():
            return isr.on_alter_partition(ctx, event)
        case events.IsrChangeNotification():
            return isr.on_isr_change_notification(ctx)
        case events.LogDirEventNotification():
            return brokers.on_log_dir_notification(ctx)
        case events.LeaderAndIsrResponseReceived():
            return brokers.on_leader_and_isr_response(ctx, event)
        case events.UpdateMetadataResponseReceived():
            return _on_update_metadata_response(ctx, event)
    raise TypeError(f"no procedure for {event!r}")


def _on_update_metadata_response(
    ctx: Context, event: events.UpdateMetadataResponseReceived
) -> Procedure[None]:
    """Log an error of the response; nothing else depends on it (CHAN-33)."""
    if event.error != ControllerError.NONE:
        text = f"broker {event.broker} responded to UpdateMetadata with error {event.error}"
        ctx.say(LoggerName.STATE_CHANGE, Level.ERROR, text)
    yield from ()


def _failure_response(event: Event, error: Exception) -> Any:
    if isinstance(event, events.AlterPartition):
        return ControllerError.UNKNOWN_SERVER_ERROR, []
    if isinstance(error, FencedError):
        return not_controller_response(event)
    match event:
        case events.ControlledShutdown():
            return ControllerError.UNKNOWN_SERVER_ERROR, []
        case events.ApiReassignment() | events.ListReassignments() | events.UpdateFeatures():
            return ControllerError.UNKNOWN_SERVER_ERROR, {}
        case events.ElectLeaders(_, partitions):
            return dict.fromkeys(partitions or (), (ControllerError.UNKNOWN_SERVER_ERROR, None, -1))
    return None


def not_controller_response(event: Event) -> Any:
    """The response to a request that a node without the role gets (EVT-7); None if there is none.

    Requests that were dropped from the queue get the same response (EVT-6), with one difference
    from Apache Kafka: Kafka sends nothing for a dropped AlterPartition or UpdateFeatures and lets
    the requester run into its timeout; here both get NOT_CONTROLLER at once.
    """
    match event:
        case events.ControlledShutdown():
            return ControllerError.STALE_CONTROLLER_EPOCH, []
        case events.AlterPartition():
            return ControllerError.NOT_CONTROLLER, []
        case events.ApiReassignment() | events.ListReassignments() | events.UpdateFeatures():
            return ControllerError.NOT_CONTROLLER, {}
        case events.ElectLeaders(_, partitions):
            return dict.fromkeys(partitions or (), (ControllerError.NOT_CONTROLLER, None, -1))
    return None
