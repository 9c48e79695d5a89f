"""What a worker keeps between tasks."""

import pytest

from klamm.pipeline.source.pool import Pool
from tests.support.waiting import wait_until


class Client:
    def __init__(self, settings):
        self.settings = settings
        self.is_sound = True
        self.is_closed = False


def close(client: Client) -> None:
    client.is_closed = True


def pool(idle_s: float = 60.0) -> Pool[Client]:
    return Pool(Client, is_sound=lambda client: client.is_sound, close=close, idle_s=idle_s)


def idle_count(clients: Pool[Client]) -> int:
    return sum(map(len, clients._idle.values()))


def test_the_next_task_with_the_same_settings_gets_the_same_client():
    clients = pool()
    with clients.borrowed({"a": "1"}) as first:
        pass
    with clients.borrowed({"a": "1"}) as second, clients.borrowed({"a": "1"}) as beside:
        assert second is first
        assert beside is not first
    with clients.borrowed({"a": "2"}) as other:
        assert other.settings == {"a": "2"}
    assert idle_count(clients) == 3
    assert not first.is_closed


def test_a_client_of_a_task_that_failed_is_closed():
    clients = pool()
    with pytest.raises(KeyError), clients.borrowed({}) as client:
        raise KeyError
    assert client.is_closed
    assert idle_count(clients) == 0


def test_a_client_that_is_not_sound_is_closed_whenever_that_shows():
    clients = pool()
    with clients.borrowed({}) as first:
        first.is_sound = False
    assert first.is_closed
    with clients.borrowed({}) as second:
        pass
    second.is_sound = False
    with clients.borrowed({}) as third:
        assert third is not second
    assert second.is_closed


def test_a_client_that_nobody_uses_is_closed():
    clients = pool(idle_s=0.05)
    with clients.borrowed({}) as client:
        pass
    wait_until(lambda: client.is_closed, "it is closed")
    assert idle_count(clients) == 0
    with clients.borrowed({}) as other:
        pass
    wait_until(lambda: other.is_closed, "the next one is closed as well")
