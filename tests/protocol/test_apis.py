import re
from pathlib import Path

import pytest

from klamm.protocol.apis import (
    APIS,
    KNOWN_APIS,
    NEVER,
    ApiKey,
    is_flexible,
    request_header_version,
    response_header_version,
)
from klamm.protocol.codes import ErrorCode

SPEC = Path(__file__).parents[2] / "docs" / "spec" / "broker.md"

#: Of tier 2, what klamm implements.
TIER_TWO = {17, 21, 29, 30, 31, 33, 35, 36, 48, 49, 50, 51, 57, 61}


def rows_of(heading: str) -> list[list[str]]:
    section = SPEC.read_text().split(heading)[1].split("\n### ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()]
    return [
        [key, *row[1:]]
        for row in cells
        if re.fullmatch(r"\d+(, \d+)*", row[0])
        for key in row[0].split(", ")
    ]


def bounds(cell: str) -> tuple[int, int]:
    found = re.match(r"(\d+)(?:\.\.(\d+))?", cell)
    assert found
    low = int(found[1])
    return low, int(found[2] or low)


@pytest.mark.rule("API-1", "API-2")
def test_the_table_is_that_of_the_specification():
    tier_one = rows_of("### 1.1 Tier 1")
    tier_two = [row for row in rows_of("### 1.2 Tier 2") if int(row[0]) in TIER_TWO]
    tier_three = rows_of("### 1.3 Tier 3")
    expected = {
        int(row[0]): (bounds(row[2]), NEVER if row[3] == "none" else int(row[3]))
        for row in tier_one + tier_two + tier_three
    }
    expected |= {65: ((0, 0), 0), 66: ((0, 1), 0)}  # which share a row
    expected |= {27: ((0, 1), 1)}  # version 0 as well, for coordinators of older brokers
    assert len(tier_one) == 33
    assert {
        key: ((api.min_version, api.max_version), api.first_flexible) for key, api in APIS.items()
    } == expected


def test_names_are_those_of_the_specification():
    names = {int(row[0]): row[1].split(" (")[0] for row in rows_of("### 1.1 Tier 1")}
    assert {key: APIS[key].name for key in names} == names


def test_keys_ascend_and_every_key_has_a_row():
    assert list(APIS) == sorted(APIS)
    assert sorted(KNOWN_APIS) == [int(key) for key in ApiKey]


def test_requests_to_kraft_controllers_are_not_served():
    assert KNOWN_APIS.keys() - APIS.keys() == {ApiKey.DESCRIBE_QUORUM, ApiKey.FETCH_SNAPSHOT}


@pytest.mark.rule("API-6")
def test_produce_is_advertised_from_zero_and_read_from_three():
    produce = APIS[ApiKey.PRODUCE]
    assert produce.min_version == 0
    assert [version for version in range(-1, 13) if produce.decodes(version)] == [*range(3, 12)]


@pytest.mark.rule("API-6")
def test_ranges_hold_what_old_librdkafka_tests_for():
    for key, versions in {
        ApiKey.FIND_COORDINATOR: [0],
        ApiKey.JOIN_GROUP: [0],
        ApiKey.SYNC_GROUP: [0],
        ApiKey.HEARTBEAT: [0],
        ApiKey.LEAVE_GROUP: [0],
        ApiKey.INIT_PRODUCER_ID: [0],
        ApiKey.LIST_OFFSETS: [1],
        ApiKey.OFFSET_FETCH: [1],
        ApiKey.OFFSET_COMMIT: [2],
        ApiKey.PRODUCE: [0, 3, 7],
        ApiKey.FETCH: [4, 10],
    }.items():
        assert all(APIS[key].min_version <= v <= APIS[key].max_version for v in versions)


@pytest.mark.rule("BADM-11")
def test_moves_between_directories_of_a_broker_are_not_promised():
    (alter_replica_log_dirs,) = (row for row in rows_of("### 1.2 Tier 2") if row[0] == "34")
    assert int(alter_replica_log_dirs[0]) not in APIS


@pytest.mark.rule("API-11")
def test_internal_keys_are_advertised():
    assert {4, 5, 6, 7, 56, 67} <= APIS.keys()
    assert (APIS[ApiKey.FETCH].max_version, APIS[ApiKey.LEADER_AND_ISR].max_version) == (17, 7)


@pytest.mark.rule("API-3")
def test_headers_have_tagged_fields_exactly_when_the_version_is_flexible():
    assert not is_flexible(ApiKey.METADATA, 8)
    assert is_flexible(ApiKey.METADATA, 9)
    assert [request_header_version(ApiKey.METADATA, v) for v in (8, 9)] == [1, 2]
    assert [response_header_version(ApiKey.METADATA, v) for v in (8, 9)] == [0, 1]
    assert [request_header_version(ApiKey.OFFSET_DELETE, 0)] == [1]


@pytest.mark.rule("API-3a")
def test_only_the_first_controlled_shutdown_lacks_a_client_id():
    assert [request_header_version(ApiKey.CONTROLLED_SHUTDOWN, v) for v in range(4)] == [0, 1, 1, 2]


@pytest.mark.rule("API-4")
def test_responses_to_api_versions_keep_the_oldest_header():
    assert [response_header_version(ApiKey.API_VERSIONS, v) for v in range(5)] == [0] * 5
    assert [request_header_version(ApiKey.API_VERSIONS, v) for v in range(5)] == [1, 1, 1, 2, 2]


def test_codes_are_those_of_the_specification():
    text = SPEC.read_text().split("Numeric codes used below:")[1].split("\n\n")[0]
    pairs = re.findall(r"([A-Z_]{4,}) (-?\d+)", text)
    assert len(pairs) > 80
    assert {name: int(code) for name, code in pairs}.items() <= {
        code.name: int(code) for code in ErrorCode
    }.items()


def test_codes_are_dense_and_say_whether_to_retry():
    assert [int(code) for code in ErrorCode] == list(range(-1, 128))
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.INVALID_TOPIC_EXCEPTION.retriable
    assert ErrorCode(36).message == "Topic with this name already exists."
