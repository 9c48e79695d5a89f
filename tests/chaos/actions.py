"""What administrators and groups do while the cluster is in trouble."""

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from klamm.client import elections, groups, reassignments
from klamm.client.elections import ElectionType
from klamm.errors import KlammError
from tests.chaos.clients import Member, settings
from tests.chaos.plan import Step
from tests.chaos.recording import Asked, Recorder
from tests.chaos.world import WANDERER, World, written

_CALL_S: Final = 15.0


class Groups:
    """Two groups, one for each way to rebalance, whose members come and go."""

    MEMBERS: Final = {"tellers": (3, "range"), "auditors": (2, "cooperative-sticky")}

    def __init__(self, bootstrap: str, recorder: Recorder) -> None:
        self._bootstrap = bootstrap
        self._recorder = recorder
        self._number = itertools.count(1)
        self._members = [
            (group, self._join(group))
            for group, (count, _) in self.MEMBERS.items()
            for _ in range(count)
        ]

    def restart(self, number: int) -> None:
        """A member leaves, and another one joins."""
        place = number % len(self._members)
        group, member = self._members[place]
        member.stop()
        self._members[place] = group, self._join(group)

    def stop(self) -> None:
        for _, member in self._members:
            member.stop()

    def _join(self, group: str) -> Member:
        name = f"{group}-{next(self._number)}"
        return Member(group, name, self._bootstrap, self._recorder, self.MEMBERS[group][1])


class Actions:
    """Does one thing after the other until it is told to stop; refusals are not a failure."""

    def __init__(
        self,
        world: World,
        groups: Groups,
        recorder: Recorder,
        say: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._world = world
        self._groups = groups
        self._recorder = recorder
        self._say = say
        self._stop = stop
        self._client = AdminClient(settings(world.bootstrap))
        self._number = itertools.count(1)
        #: Topics that may be there, and how many partitions they may have.
        self._topics: dict[str, int] = {}

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if self._stop.wait(step.after_s):
                return
            try:
                self.KINDS[step.what](self, int(step.target))
            except (KafkaException, KlammError, TimeoutError) as error:
                self._say(f"  {step.what}: {error}")

    def _create(self, chosen: int) -> None:
        self._create_topic(f"scratch-{next(self._number)}", 1 + chosen % 4)

    def _create_topic(self, topic: str, partitions: int) -> None:
        self._topics[topic] = partitions
        replicas = min(2 + partitions % 2, len(self._world.brokers))
        asked = NewTopic(topic, num_partitions=partitions, replication_factor=replicas)
        self._ask("create", topic, partitions, lambda: self._client.create_topics([asked])[topic])

    def _expand(self, chosen: int) -> None:
        if (topic := self._pick(chosen)) is not None:
            self._topics[topic] += 1 + chosen % 3
            asked = NewPartitions(topic, self._topics[topic])
            self._ask(
                "expand",
                topic,
                self._topics[topic],
                lambda: self._client.create_partitions([asked])[topic],
            )

    def _delete(self, chosen: int) -> None:
        if (topic := self._pick(chosen)) is not None:
            del self._topics[topic]
            self._ask("delete", topic, 0, lambda: self._client.delete_topics([topic])[topic])

    def _recreate(self, chosen: int) -> None:
        if (topic := self._pick(chosen)) is not None:
            self._delete(chosen)
            self._create_topic(topic, 1 + chosen % 4)

    def _reassign(self, chosen: int) -> None:
        partitions = [name for name in written() if name[0] == WANDERER]
        brokers = sorted(self._world.brokers)
        orders = list(itertools.permutations(brokers, min(2, len(brokers))))
        plan = {
            name: orders[(chosen + place * 7) % len(orders)]
            for place, name in enumerate(partitions)
            if (chosen >> place) % 2
        }
        if plan:
            for refusal in reassignments.alter(self._world.admin, plan):
                self._say(f"  reassign: {refusal}")

    def _cancel(self, chosen: int) -> None:
        moving = reassignments.list_reassignments(self._world.admin)
        if moving:
            reassignments.alter(
                self._world.admin, {(each.topic, each.partition): None for each in moving}
            )

    def _elect(self, chosen: int) -> None:
        elections.elect(self._world.admin, ElectionType.PREFERRED, None)

    def _alter_config(self, chosen: int) -> None:
        change = ConfigEntry(
            "segment.bytes",
            str(100_000 + chosen),
            incremental_operation=AlterConfigOpType.SET,
        )
        named = ConfigResource(ResourceType.TOPIC, WANDERER, incremental_configs=[change])
        self._client.incremental_alter_configs([named])[named].result(_CALL_S)

    def _describe(self, chosen: int) -> None:
        self._client.list_topics(timeout=_CALL_S)
        # Not by librdkafka, which aborts the process when a coordinator does not answer in time
        # (https://github.com/confluentinc/librdkafka/issues/4605).
        for group in Groups.MEMBERS:
            groups.describe(self._world.admin, group)

    def _restart_member(self, chosen: int) -> None:
        self._groups.restart(chosen)

    KINDS: Final = {
        "create": _create,
        "expand": _expand,
        "delete": _delete,
        "recreate": _recreate,
        "reassign": _reassign,
        "cancel reassignments": _cancel,
        "elect preferred": _elect,
        "restart member": _restart_member,
        "alter config": _alter_config,
        "describe": _describe,
    }

    def _pick(self, chosen: int) -> str | None:
        known = sorted(self._topics)
        return known[chosen % len(known)] if known else None

    def _ask(self, call: str, topic: str, partitions: int, ask: Callable[[], Future[None]]) -> None:
        began_at = time.time()
        error = None
        try:
            ask().result(_CALL_S)
        except (KafkaException, TimeoutError) as failure:
            error = str(failure) or type(failure).__name__
        self._recorder.add(Asked(call, topic, partitions, began_at, time.time(), error))
