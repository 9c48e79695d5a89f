"""Events find their procedure; a node that is not controller gives the right errors."""

from dataclasses import fields
from typing import Any

import pytest

from klamm.core import effects, events
from klamm.core.events import ControllerError, Event, RequestedElection
from klamm.core.procedures.dispatch import handle, not_controller_response
from klamm.errors import FencedError, UnavailableError
from tests.support.procedure_world import steady

T0, T1 = ("t", 0), ("t", 1)
REQUESTS: dict[str, Event] = {
    "shutdown": events.ControlledShutdown(1, 1),
    "reassign": events.ApiReassignment({T0: [1]}),
    "list": events.ListReassignments(None),
    "elect": events.ElectLeaders(RequestedElection.PREFERRED, [T0, T1]),
    "elect all": events.ElectLeaders(RequestedElection.PREFERRED, None),
    "alter": events.AlterPartition(1, 1, 2, []),
    "features": events.UpdateFeatures([]),
    "change": events.BrokerChange(),
}
EVENTS = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]
NOT_CONTROLLER = (ControllerError.NOT_CONTROLLER, None, -1)


@pytest.mark.rule("EVT-7", "SHUT-2", "REASG-5", "PREF-2", "ISR-8")
@pytest.mark.parametrize(
    ("name", "response"),
    [
        ("shutdown", (ControllerError.STALE_CONTROLLER_EPOCH, [])),
        ("reassign", (ControllerError.NOT_CONTROLLER, {})),
        ("list", (ControllerError.NOT_CONTROLLER, {})),
        ("elect", {T0: NOT_CONTROLLER, T1: NOT_CONTROLLER}),
        ("elect all", {}),
        ("alter", (ControllerError.NOT_CONTROLLER, [])),
        ("features", (ControllerError.NOT_CONTROLLER, {})),
        ("change", None),
    ],
)
def test_a_node_that_is_not_controller_says_so(name: str, response: object) -> None:
    assert not_controller_response(REQUESTS[name]) == response


def _example(kind: type[Event]) -> Event:
    examples: dict[str, Any] = {
        "broker": 1,
        "broker_epoch": 1,
        "topic": "t",
        "partition": 0,
        "error": 0,
        "errors": {},
        "answered": [],
        "version": 2,
        "proposals": [],
        "targets": {},
        "partitions": [],
        "kind": RequestedElection.PREFERRED,
        "updates": [],
        "validate_only": False,
    }
    return kind(**{field.name: examples[field.name] for field in fields(kind)})


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_has_a_procedure(kind: type[Event]) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.run(handle(world.ctx, _example(kind)))


def test_an_unknown_event_is_a_bug() -> None:
    world = steady([1], {})
    with pytest.raises(TypeError, match="no procedure"):
        world.run(handle(world.ctx, Event()))


@pytest.mark.rule("REASG-10", "EVT-8")
@pytest.mark.parametrize("name", ["shutdown", "reassign", "list", "elect"])
@pytest.mark.parametrize("error", [UnavailableError("gone"), FencedError("moved")])
def test_a_requester_is_answered_even_if_its_event_fails(name: str, error: Exception) -> None:
    world = steady([1, 2], {"t": {0: [2, 1]}})
    event = REQUESTS[name]
    if name == "shutdown":
        event = events.ControlledShutdown(1, world.registrations[1].epoch)

    def fail(effect: effects.Effect) -> None:
        if not world.responses:
            world.responses.append("about to fail")
            raise error

    world.faults.before = fail
    with pytest.raises(type(error)):
        world.run(handle(world.ctx, event))
    response = world.responses[-1]
    if isinstance(error, FencedError):
        assert response == not_controller_response(event)
    else:
        assert "UNKNOWN_SERVER_ERROR" in repr(response)
