"""Finding the broker to ask, also when it is the wrong one, is gone, or is none at all."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from klamm.client import topics
from klamm.client.admin import Admin, suggestion
from klamm.errors import ConfigError, UnavailableError
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.frames import decode_request, encode_response
from klamm.protocol.codes import ErrorCode, KafkaError
from tests.support.waiting import wait_until

Answer = Callable[[Any], dict[str, Any]]


class ScriptedBroker:
    """Answers requests as it is told to, and remembers them."""

    def __init__(self, responses: dict[ApiKey, Answer]) -> None:
        self.asked: list[tuple[ApiKey, int]] = []
        self.versions = {key: (api.min_version, api.max_version) for key, api in APIS.items()}
        self._responses = responses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            while size := stream.read(4):
                request = decode_request(stream.read(struct.unpack(">i", size)[0]))
                api = ApiKey(request.header.api_key)
                self.asked.append((api, request.header.api_version))
                if api is ApiKey.API_VERSIONS:
                    response = {
                        "api_keys": [
                            {"api_key": key, "min_version": low, "max_version": high}
                            for key, (low, high) in self.versions.items()
                        ]
                    }
                else:
                    response = self._responses[api](request.body)
                connection.sendall(encode_response(request.header, response))


def metadata_of(brokers: list[ScriptedBroker], first_id: int = 1) -> dict[str, Any]:
    """The response that names these brokers; the first is controller."""
    return {
        "brokers": [
            {"node_id": number, "host": "127.0.0.1", "port": each.port, "rack": None}
            for number, each in enumerate(brokers, start=first_id)
        ],
        "cluster_id": "c",
        "controller_id": first_id,
        "topics": [],
    }


@contextmanager
def scripted(*scripts: dict[ApiKey, Answer]) -> Iterator[list[ScriptedBroker]]:
    """Brokers with ids from 1 on, which know each other; the first is controller."""
    brokers: list[ScriptedBroker] = []

    def metadata(_: Any) -> dict[str, Any]:
        return metadata_of(brokers)

    try:
        for script in scripts:
            brokers.append(ScriptedBroker({ApiKey.METADATA: metadata, **script}))
        yield brokers
    finally:
        for each in brokers:
            each.close()


def delete_topics(*codes: ErrorCode) -> Answer:
    """One code after the other; the last one from then on."""
    left = list(codes)

    def respond(_: Any) -> dict[str, Any]:
        code = left.pop(0) if len(left) > 1 else left[0]
        return {"responses": [{"name": "t", "error_code": code, "error_message": None}]}

    return respond


def test_a_controller_that_is_none_any_more_is_asked_again_until_it_is():
    response = delete_topics(ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER, ErrorCode.NONE)
    with scripted({ApiKey.DELETE_TOPICS: response}, {}) as (first, second):
        with Admin(second.address) as admin:
            topics.delete(admin, "t")
        assert [api for api, _ in first.asked].count(ApiKey.DELETE_TOPICS) == 3
        assert ApiKey.DELETE_TOPICS not in [api for api, _ in second.asked]


def test_an_error_that_stays_is_raised_when_the_time_is_over():
    response = delete_topics(ErrorCode.NOT_CONTROLLER)
    with (
        scripted({ApiKey.DELETE_TOPICS: response}) as (only,),
        Admin(only.address, timeout_s=0.3) as admin,
        pytest.raises(KafkaError, match=r"^NOT_CONTROLLER: ") as raised,
    ):
        topics.delete(admin, "t")
    assert raised.value.code is ErrorCode.NOT_CONTROLLER


def test_other_errors_are_raised_at_once_with_kafkas_name():
    with (
        scripted({ApiKey.DELETE_TOPICS: delete_topics(ErrorCode.TOPIC_DELETION_DISABLED)}) as (
            one,
        ),
        Admin(one.address) as admin,
        pytest.raises(KafkaError, match=r"^TOPIC_DELETION_DISABLED: topic t: "),
    ):
        topics.delete(admin, "t")
    assert [api for api, _ in one.asked].count(ApiKey.DELETE_TOPICS) == 1


def test_the_best_version_of_both_sides_is_used():
    with scripted({ApiKey.DELETE_TOPICS: delete_topics(ErrorCode.NONE)}) as (one,):
        one.versions[ApiKey.METADATA] = (0, 9)
        one.versions[ApiKey.DELETE_TOPICS] = (1, 99)
        with Admin(one.address) as admin:
            topics.delete(admin, "t")
        assert (ApiKey.METADATA, 9) in one.asked
        assert (ApiKey.DELETE_TOPICS, 5) in one.asked, "the last in which a name is a string"


def test_a_broker_that_lacks_a_request_is_told_apart():
    with scripted({}) as (one,):
        del one.versions[ApiKey.DELETE_TOPICS]
        with (
            Admin(one.address) as admin,
            pytest.raises(KafkaError, match=r"UNSUPPORTED_VERSION: .*has no DeleteTopics"),
        ):
            topics.delete(admin, "t")


def test_a_broker_that_does_not_respond_is_passed_over():
    with scripted({}) as (one,):
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        with Admin(f"{dead},{one.address}") as admin:
            assert [each.id for each in topics.describe(admin).brokers] == [1]


@contextmanager
def hanging() -> Iterator[str]:
    """The address of a broker that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_broker_that_hangs_is_passed_over_and_asked_last_from_then_on():
    with scripted({}) as (one,), hanging() as hung, Admin(f"{hung},{one.address}") as admin:
        topics.describe(admin)
        assert admin._responsive == ("127.0.0.1", one.port)
        before = len(one.asked)
        topics.describe(admin)
        assert len(one.asked) > before


def test_a_controller_that_hangs_is_left_when_another_has_its_role():
    release = threading.Event()

    def hang(_: Any) -> dict[str, Any]:
        release.wait(30)
        return {"responses": []}

    controller = [1]

    def metadata(_: Any) -> dict[str, Any]:
        controller.append(2)  # the next question is answered with another controller
        return {
            "brokers": [
                {"node_id": number, "host": "127.0.0.1", "port": each.port, "rack": None}
                for number, each in enumerate(brokers, start=1)
            ],
            "cluster_id": "c",
            "controller_id": controller.pop(0),
            "topics": [],
        }

    done = {ApiKey.DELETE_TOPICS: delete_topics(ErrorCode.NONE), ApiKey.METADATA: metadata}
    with scripted({ApiKey.DELETE_TOPICS: hang}, done) as brokers:
        with Admin(brokers[1].address) as admin:
            topics.delete(admin, "t")
        assert ApiKey.DELETE_TOPICS in [api for api, _ in brokers[1].asked]
        release.set()
        wait_until(lambda: not any("send" in each.name for each in threading.enumerate()))


def test_a_connection_that_was_closed_is_opened_again():
    with scripted({}) as (one,), Admin(one.address) as admin:
        topics.describe(admin)
        for connection in one._connections:
            connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(UnavailableError):
            topics.describe(admin)
        assert topics.describe(admin).controller == 1


def test_a_server_that_is_no_broker_is_not_believed():
    def greet(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with Admin(address) as admin, pytest.raises(UnavailableError, match="not a Kafka broker"):
            topics.describe(admin)
        thread.join()


def created(code: ErrorCode) -> dict[str, Any]:
    result = {"topic_id": None, "num_partitions": 2, "replication_factor": 1, "configs": []}
    return {"topics": [{"name": "t", "error_code": code, "error_message": None, **result}]}


def test_a_topic_that_a_dying_controller_created_is_not_refused_by_the_next():
    attempts: list[Any] = []

    def create(body: Any) -> dict[str, Any]:
        attempts.append(body)
        if len(attempts) == 1:
            raise ConnectionError("the controller dies")
        return created(ErrorCode.TOPIC_ALREADY_EXISTS)

    def metadata(_: Any) -> dict[str, Any]:
        partition = {
            "error_code": 0,
            "leader_id": 1,
            "leader_epoch": 0,
            "replica_nodes": [1],
            "isr_nodes": [1],
            "offline_replicas": [],
        }
        topic = {
            "error_code": 0,
            "name": "t",
            "topic_id": None,
            "is_internal": False,
            "topic_authorized_operations": 0,
            "partitions": [{"partition_index": n, **partition} for n in range(3)],
        }
        return metadata_of(brokers) | {"topics": [topic]}

    with (
        scripted({ApiKey.CREATE_TOPICS: create, ApiKey.METADATA: metadata}) as brokers,
        Admin(brokers[0].address) as admin,
    ):
        assert topics.create(admin, topics.NewTopic("t", -1, 1)) == 3
    assert len(attempts) == 2


def test_a_broker_that_hangs_is_not_waited_for_to_hear_of_a_topic(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(topics, "_ANSWERED_WITHIN_S", 0.05)
    release = threading.Event()

    def hang(_: Any) -> dict[str, Any]:
        release.wait()
        return {}

    def metadata(body: Any) -> dict[str, Any]:
        unknown = {
            "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "name": "t",
            "topic_id": None,
            "is_internal": False,
            "topic_authorized_operations": 0,
            "partitions": [],
        }
        return metadata_of(brokers) | {"topics": [unknown] if body.topics else []}

    # The timeout of the admin client is longer than that of the test.
    with (
        scripted({ApiKey.METADATA: metadata}, {ApiKey.METADATA: hang}) as brokers,
        Admin(brokers[0].address, timeout_s=1000) as admin,
    ):
        assert topics.brokers_unaware_of(admin, "t", 1) == {1}
        release.set()


def test_a_topic_that_was_there_before_is_refused():
    script = {ApiKey.CREATE_TOPICS: lambda _: created(ErrorCode.TOPIC_ALREADY_EXISTS)}
    with (
        scripted(script) as brokers,
        Admin(brokers[0].address) as admin,
        pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"),
    ):
        topics.create(admin, topics.NewTopic("t", 1, 1))


@pytest.mark.parametrize("text", ["localhost", "localhost:", ":9092", "a:b", "a:70000", ""])
def test_an_address_has_a_host_and_a_port(text: str):
    with pytest.raises(ConfigError, match="expected is HOST:PORT"):
        Admin(text)


def test_a_suggestion_is_made_only_where_something_is_similar():
    assert suggestion("ordres", ["orders", "clicks"]) == "; did you mean orders?"
    assert suggestion("payments", ["orders", "clicks"]) == ""


def test_a_broker_that_others_take_for_dead_is_asked_last():
    told: list[dict[str, Any]] = []

    def survivors(_: Any) -> dict[str, Any]:
        return told[0]

    with scripted({}, {ApiKey.METADATA: survivors}) as (cut_off, alive):
        everybody = metadata_of([cut_off, alive])
        told.append(metadata_of([alive], first_id=2))
        with Admin(cut_off.address) as admin:
            assert len(admin.metadata([]).brokers) == 2
            assert admin.ask_second()
            assert [each.node_id for each in admin.metadata([]).brokers] == [2]
            told[0] = everybody
            assert len(admin.metadata([]).brokers) == 2
            assert not admin.ask_second()


def test_a_second_broker_that_cannot_answer_has_no_opinion():
    with scripted({}, {}) as (first, second):
        del second.versions[ApiKey.METADATA]
        with Admin(first.address) as admin:
            admin.metadata([])
            assert not admin.ask_second()
            assert len(admin.metadata([]).brokers) == 2
