"""Carries out a plan: each fault comes, lasts, and ends again; requests are made as they come."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable

from klamm.protocol.codes import ErrorCode
from tests.simulation.clients import Administrator
from tests.simulation.loop import Process
from tests.simulation.plan import Action, Plan
from tests.simulation.world import Machine, World

#: The topic that must not lose anything, and the one that comes and goes.
ORDERS = "orders"
TEMPORARY = "temporary"
#: After this long a broker that is asked to stop is killed.
_STOP_S = 3.0
#: How long a machine without power stays off, waiting to be written off.
_OFF_S = 3.0
#: How long one waits for a write of the controller.
_WRITES_S = 3.0


class Trouble:
    """One history's faults and requests."""

    def __init__(self, world: World, plan: Plan, admin: Administrator) -> None:
        self._world = world
        self._plan = plan
        self._admin = admin
        #: Writes of candidates to be counted down, and what happens then.
        self._at_write: list[tuple[int, Callable[[Process], None]]] = []
        world.zookeeper.after_write = self._after_write
        self._kinds: dict[str, Callable[[Action], Awaitable[None]]] = {
            "crash": self._crash,
            "stop": self._stop,
            "crash at a write": self._crash_at_write,
            "kill the candidate at a write": self._kill_at_write,
            "pause the candidate at a write": self._pause_at_write,
            "depose the controller at a write": self._depose_at_write,
            "delay the controller's word": self._delay_word,
            "lose an answer of zookeeper": self._lose_answer,
            "kill the candidate": self._kill_candidate,
            "pause the broker": self._pause_broker,
            "pause the candidate": self._pause_candidate,
            "pause both": self._pause_both,
            "cut": self._cut,
            "cut from zookeeper": self._cut_from_zookeeper,
            "reset connections": self._reset,
            "expire the broker": self._expire_broker,
            "expire the candidate": self._expire_candidate,
            "torn write": self._torn_write,
            "full disk": self._full_disk,
            "power loss": self._power_loss,
            "clock jump": self._clock_jump,
            "create": self._create,
            "delete": self._delete,
            "expand": self._expand,
            "move": self._move,
            "cancel": self._cancel,
            "elect": self._elect,
            "move the controller": self._move_controller,
        }

    async def run(self) -> None:
        """Carry out the whole plan, to the end of its last fault."""
        tasks = []
        for action in self._plan.actions:
            await asyncio.sleep(max(action.at - self._world.loop.time(), 0.0))
            self._world.operations += 1
            self._world.note("PLAN", str(action)[7:])
            tasks.append(asyncio.create_task(self._perform(action)))
        for task in tasks:
            await task

    async def _perform(self, action: Action) -> None:
        await self._kinds[action.kind](action)

    def _machine(self, action: Action) -> Machine:
        return self._world.machines[action.broker]

    def _chance(self, action: Action) -> random.Random:
        return random.Random(f"{self._plan.seed}/{action}")

    # Crashes

    async def _crash(self, action: Action) -> None:
        machine = self._machine(action)
        self._world.note(machine.name, "CRASH")
        machine.crash()
        await self._restart_after(machine, action.seconds)

    async def _restart_after(self, machine: Machine, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if not machine.is_up:
            machine.start()

    async def _stop(self, action: Action) -> None:
        machine = self._machine(action)
        await self._stop_in_order(machine)
        await self._restart_after(machine, action.seconds)

    async def _stop_in_order(self, machine: Machine) -> None:
        broker = machine.broker
        if broker is not None and broker.is_alive:
            broker.signal(signal.SIGTERM)
            if not await self._world.until(lambda: not broker.is_alive, _STOP_S):
                self._world.note(machine.name, "KILL, since it does not stop")
                broker.end()

    def _after_write(self, process: Process) -> None:
        if not self._at_write or not process.name.startswith("c"):
            return
        waiting, self._at_write = self._at_write, []
        for left, act in waiting:
            if left > 1:
                self._at_write.append((left - 1, act))
            else:
                act(process)

    async def _next_writer(self, action: Action, act: Callable[[Process], None]) -> Process | None:
        """Do something to whichever candidate makes the write of that number, if one does."""
        found: asyncio.Future[Process] = asyncio.get_running_loop().create_future()

        def at_write(process: Process) -> None:
            act(process)
            if not found.done():
                found.set_result(process)

        waiting = (action.number, at_write)
        self._at_write.append(waiting)
        await self._world.until(found.done, _WRITES_S)
        self._at_write = [each for each in self._at_write if each[1] is not at_write]
        return found.result() if found.done() else None

    async def _crash_at_write(self, action: Action) -> None:
        """The controller's machine is gone right after a write, before anybody hears of it."""

        def act(process: Process) -> None:
            machine = self._world.machine_of(process)
            self._world.note(machine.name, "CRASH after a write")
            machine.crash()

        process = await self._next_writer(action, act)
        if process is not None:
            await self._restart_after(self._world.machine_of(process), action.seconds)

    async def _kill_at_write(self, action: Action) -> None:
        def act(process: Process) -> None:
            self._world.note(process.name, "KILL after a write")
            process.end()

        await self._next_writer(action, act)

    async def _pause_at_write(self, action: Action) -> None:
        process = await self._next_writer(action, self._stand_still)
        if process is not None:
            await asyncio.sleep(action.seconds)
            self._go_on(process)

    async def _depose_at_write(self, action: Action) -> None:
        """The role goes to another one while the old controller is at work, and does not know."""

        def act(process: Process) -> None:
            self._world.note("operator", f"DELETES /controller while {process} hears nothing")
            self._world.delete_controller()
            self._world.zookeeper.lose_sight(process)

        process = await self._next_writer(action, act)
        if process is not None:
            await asyncio.sleep(action.seconds)
            self._world.note(process.name, "reaches ZooKeeper again")
            self._world.zookeeper.see_again(process)

    async def _delay_word(self, action: Action) -> None:
        """What a controller announces reaches a broker after the word of its successor."""
        network = self._world.network
        other = f"b{action.broker}"

        def act(process: Process) -> None:
            self._world.note("network", f"CUT between {process} and {other}")
            network.cut(process.node, other)

        process = await self._next_writer(action, act)
        if process is not None:
            await asyncio.sleep(0.02)
            self._world.note("operator", "DELETES /controller")
            self._world.delete_controller()
            await asyncio.sleep(action.seconds)
            self._world.note("network", f"{process} and {other} reach each other again")
            network.heal(process.node, other)

    async def _lose_answer(self, action: Action) -> None:
        def act(process: Process) -> None:
            self._world.note(process.name, "LOSES an answer of ZooKeeper")
            self._world.zookeeper.lose_sight(process)

        process = await self._next_writer(action, act)
        if process is not None:
            await asyncio.sleep(action.seconds + 0.05)
            self._world.zookeeper.see_again(process)

    async def _kill_candidate(self, action: Action) -> None:
        candidate = self._machine(action).candidate
        if candidate is not None:
            self._world.note(candidate.name, "KILL")
            candidate.end()

    # Pauses

    async def _pause_broker(self, action: Action) -> None:
        await self._pause([self._machine(action).broker], action.seconds)

    async def _pause_candidate(self, action: Action) -> None:
        await self._pause([self._machine(action).candidate], action.seconds)

    async def _pause_both(self, action: Action) -> None:
        machine = self._machine(action)
        await self._pause([machine.broker, machine.candidate], action.seconds)

    async def _pause(self, processes: list[Process | None], seconds: float) -> None:
        paused = [each for each in processes if each and each.is_alive and not each.is_paused]
        for process in paused:
            self._stand_still(process)
        await asyncio.sleep(seconds)
        for process in paused:
            self._go_on(process)

    def _stand_still(self, process: Process) -> None:
        self._world.note(process.name, "PAUSED")
        process.pause()
        self._world.zookeeper.lose_sight(process)

    def _go_on(self, process: Process) -> None:
        self._world.note(process.name, "goes on")
        self._world.zookeeper.see_again(process)
        process.resume()

    # The network

    async def _cut(self, action: Action) -> None:
        one, other = f"b{action.broker}", f"b{action.other}"
        network = self._world.network
        self._world.note("network", f"CUT between {one} and {other} for {action.seconds:.2f} s")
        network.cut(one, other)
        if action.number % 2:
            network.reset(one, other)
        await asyncio.sleep(action.seconds)
        self._world.note("network", f"{one} and {other} reach each other again")
        network.heal(one, other)

    async def _cut_from_zookeeper(self, action: Action) -> None:
        processes = self._machine(action).processes()
        self._world.note(f"b{action.broker}", f"CUT from ZooKeeper for {action.seconds:.2f} s")
        for process in processes:
            self._world.zookeeper.lose_sight(process)
        await asyncio.sleep(action.seconds)
        for process in processes:
            self._world.zookeeper.see_again(process)
        self._world.note(f"b{action.broker}", "reaches ZooKeeper again")

    async def _reset(self, action: Action) -> None:
        one, other = f"b{action.broker}", f"b{action.other}"
        count = self._world.network.reset(one, other)
        self._world.note("network", f"RESET of {count} connections between {one} and {other}")

    async def _expire_broker(self, action: Action) -> None:
        self._expire(self._machine(action).broker)

    async def _expire_candidate(self, action: Action) -> None:
        self._expire(self._machine(action).candidate)

    def _expire(self, process: Process | None) -> None:
        if process is not None and process.is_alive:
            self._world.note(process.name, "session EXPIRES")
            self._world.zookeeper.expire_now(process)

    # Disks and clocks

    async def _torn_write(self, action: Action) -> None:
        machine = self._machine(action)
        machine.files.is_torn_next = True
        broker = machine.broker
        await self._world.until(lambda: broker is None or not broker.is_alive, 3.0)
        machine.files.is_torn_next = False
        await self._restart_after(machine, action.seconds)

    async def _full_disk(self, action: Action) -> None:
        machine = self._machine(action)
        directory = machine.directories[action.number % 2]
        self._world.note(machine.name, f"{directory.name} is FULL")
        machine.files.full.add(directory)
        await asyncio.sleep(action.seconds)
        await self._stop_in_order(machine)
        await self._restart_after(machine, 0.1)

    async def _power_loss(self, action: Action) -> None:
        """What was not synced is gone, unless somebody still counts on it when the power is back.

        Kafka promises nothing about the last replica in sync; who still is that has been lucky.
        """
        machine = self._machine(action)
        self._world.note(machine.name, "CRASH, and the power is off")
        machine.crash()
        await asyncio.sleep(action.seconds)
        is_written_off = await self._world.until(lambda: self._is_written_off(machine), _OFF_S)
        if machine.is_up:
            return
        if is_written_off:
            lost = machine.files.lose_unsynced()
            self._world.note(machine.name, f"POWER LOSS, {lost} bytes are gone")
        machine.start()

    def _is_written_off(self, machine: Machine) -> bool:
        """Whether its session has ended and nobody takes it for in sync any more.

        A leader may also have asked for it to be taken into an ISR before, and go on asking: in
        ZooKeeper mode nobody tells the incarnations of a broker apart then (KIP-903).
        """
        world, number = self._world, machine.number
        return not (
            world.is_registered(number)
            or any(number in story.isr for story in world.checks.kept_stories())
            or any(
                number in partition.maximal_isr
                for other in world.machines
                for partition in world.checks.hosted_by(other)
            )
        )

    async def _clock_jump(self, action: Action) -> None:
        machine = self._machine(action)
        jump_s = self._chance(action).uniform(-3600, 3600)
        self._world.note(machine.name, f"CLOCK jumps by {jump_s:.0f} s")
        machine.clock_offset_s += jump_s
        for process in machine.processes():
            process.clock_offset_s = machine.clock_offset_s

    # The administrator

    async def _create(self, action: Action) -> None:
        chance = self._chance(action)
        everybody = sorted(self._world.machines)
        assignment = [
            chance.sample(everybody, chance.randint(1, 3)) for _ in range(chance.randint(1, 2))
        ]
        await self._request(self._admin.create(TEMPORARY, assignment, {}))

    async def _delete(self, action: Action) -> None:
        await self._request(self._admin.delete(TEMPORARY))

    async def _expand(self, action: Action) -> None:
        await self._request(self._admin.expand(TEMPORARY, 3))

    async def _move(self, action: Action) -> None:
        chance = self._chance(action)
        everybody = sorted(self._world.machines)
        topic = chance.choice((ORDERS, ORDERS, TEMPORARY))
        partition = chance.randrange(2) if topic == ORDERS else 0
        # Never fewer replicas than the topic promises to keep in sync.
        replicas = chance.sample(everybody, chance.randint(2, 3))
        await self._request(self._admin.reassign(topic, partition, replicas))

    async def _cancel(self, action: Action) -> None:
        partition = self._chance(action).randrange(2)
        await self._request(self._admin.reassign(ORDERS, partition, None))

    async def _elect(self, action: Action) -> None:
        await self._request(self._admin.elect(ORDERS, self._chance(action).randrange(2)))

    async def _request(self, request: Awaitable[ErrorCode]) -> None:
        await self._admin.process.start(request)  # type: ignore[arg-type]

    async def _move_controller(self, action: Action) -> None:
        """An operator deletes /controller."""
        self._world.note("operator", "DELETES /controller")
        self._world.delete_controller()
