"""Histories by chance: brokers, topics, moves and controllers come and go in an order of a seed."""

import random
from pathlib import Path

from klamm.core.events import (
    ApiReassignment,
    AutoRebalance,
    BrokerChange,
    ControlledShutdown,
    TopicDeletion,
)
from tests.pipeline.history.night import Cluster
from tests.support.procedure_store import TOPICS, Faults

BROKERS = (1, 2, 3, 4, 5)


def random_history(directory: Path, seed: int, steps: int = 60) -> Cluster:
    """A cluster with its spools; the same for the same seed."""
    chance = random.Random(seed)
    cluster = Cluster(directory, BROKERS)
    epoch, at = 1, 0.0
    cluster.new_controller(1, epoch, at)
    active, created = 1, 0
    for _ in range(steps):
        at += chance.uniform(0.2, 30)
        controller = cluster.at(at)
        live = sorted(controller.registrations)
        others = [broker for broker in live if broker != active]
        match chance.choice(("create", "lose", "start", "catch up", "move", "other")):
            case "create" if len(live) >= 3:
                created += 1
                replicas = {p: chance.sample(live, chance.choice((1, 2, 3))) for p in range(3)}
                cluster.create(at, **{f"topic-{created}": replicas})
            case "lose" if len(others) > 1:
                cluster.lose(at, chance.choice(others))
            case "start" if gone := sorted(set(BROKERS) - set(live)):
                cluster.start(at, chance.choice(gone))
            case "catch up":
                cluster.catch_up(at)
            case "move" if controller.children(TOPICS) and len(live) >= 3:
                name = chance.choice(controller.children(TOPICS))
                target = chance.sample(live, min(2, len(live)))
                controller.handle(
                    ApiReassignment({(name, 0): target}), "AlterPartitionReassignments"
                )
            case "other":
                match chance.choice(("rebalance", "delete", "shut down", "controller", "silent")):
                    case "rebalance":
                        controller.handle(AutoRebalance(), "timer")
                    case "delete" if controller.children(TOPICS):
                        controller.request_deletion(chance.choice(controller.children(TOPICS)))
                        controller.handle(TopicDeletion(), "watch on /admin/delete_topics")
                    case "shut down" if len(others) > 1:
                        leaving = chance.choice(others)
                        epoch_of = controller.registrations[leaving].epoch
                        controller.handle(ControlledShutdown(leaving, epoch_of), "a request")
                        cluster.lose(at + 0.5, leaving)
                    case "controller" if others:
                        if chance.random() < 0.5:
                            controller.resign()
                        else:
                            controller.lose(active)
                        active = chance.choice(others)
                        epoch += chance.choice((1, 1, 2))
                        cluster.new_controller(active, epoch, at + 1)
                    case "silent" if len(others) > 1:
                        controller.fail_announcements()
                        controller.lose(chance.choice(others))
                        controller.handle(BrokerChange(), "watch on /brokers/ids")
                        controller.faults = Faults()
    cluster.close()
    return cluster
