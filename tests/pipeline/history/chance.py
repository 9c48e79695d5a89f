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

BROKERS = (1, 2, 3, 4, 5)


def random_history(directory: Path, seed: int, steps: int = 60) -> Cluster:
    """A cluster with its spools; the same for the same seed."""
    chance = random.Random(seed)
    cluster = Cluster(directory, BROKERS)
    epoch, at = 1, 0.0
    cluster.new_controller(1, epoch, at)
    controller, created = 1, 0
    for _ in range(steps):
        at += chance.uniform(0.2, 30)
        office = cluster.at(at)
        live = sorted(office.registered)
        others = [broker for broker in live if broker != controller]
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
            case "move" if office.topics and len(live) >= 3:
                name = chance.choice(sorted(office.topics))
                target = chance.sample(live, min(2, len(live)))
                office.handle(ApiReassignment({(name, 0): target}), "AlterPartitionReassignments")
            case "other":
                match chance.choice(("rebalance", "delete", "shut down", "controller", "silent")):
                    case "rebalance":
                        office.handle(AutoRebalance(), "timer")
                    case "delete" if office.topics:
                        office.deletions.add(chance.choice(sorted(office.topics)))
                        office.handle(TopicDeletion(), "watch on /admin/delete_topics")
                    case "shut down" if len(others) > 1:
                        leaving = chance.choice(others)
                        epoch_of = office.registered[leaving].epoch
                        office.handle(ControlledShutdown(leaving, epoch_of), "a request")
                        cluster.lose(at + 0.5, leaving)
                    case "controller" if others:
                        if chance.random() < 0.5:
                            office.resign()
                        else:
                            del office.registered[controller]
                        controller = chance.choice(others)
                        epoch += chance.choice((1, 1, 2))
                        cluster.new_controller(controller, epoch, at + 1)
                    case "silent" if len(others) > 1:
                        office.fails_to_announce = True
                        del office.registered[chance.choice(others)]
                        office.handle(BrokerChange(), "watch on /brokers/ids")
                        office.fails_to_announce = False
    cluster.close()
    return cluster
