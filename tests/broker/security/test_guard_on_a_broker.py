"""ACLs on a real broker: who may do what, by requests of a user that has nothing at first."""

import uuid

import pytest

from klamm.broker.security import acl_znodes
from klamm.client import acls, quotas, users
from klamm.client.quotas import QuotaEntity
from klamm.errors import UnavailableError
from klamm.net.scram import ScramMechanism
from klamm.protocol.acls import (
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode, KafkaError
from tests.support.raw import Raw, batch, produce_values
from tests.support.secured import SecuredBroker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

Op, T = AclOperation, ResourceType


@pytest.fixture
def topic_of_admin(secured: SecuredBroker, topic: str) -> str:
    return secured.create_topic(topic + uuid.uuid4().hex[:6])


def produce(raw: Raw, topic: str, data: bytes | None = None) -> int:
    response = raw.ask(ApiKey.PRODUCE, 9, **produce_values(topic, data or batch(b"x")))
    return response.responses[0].partition_responses[0].error_code


def fetch(raw: Raw, topic: str, **more) -> int:
    response = raw.fetch(None, 0, version=11, topic=topic, **more)
    return response.topics[0].partitions[0].error_code


@pytest.mark.rule("SEC-9", "SEC-8")
def test_produce_needs_write_and_fetch_needs_read(secured, topic_of_admin):
    name = topic_of_admin
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with secured.raw("alice") as raw:
        raw.socket.settimeout(20)
        assert produce(raw, name) == denied
        secured.allow("alice", Op.WRITE, T.TOPIC, name)
        assert produce(raw, name) == ErrorCode.NONE
        assert raw.metadata(name).topics[0].error_code == 0, "Write implies Describe"
        binding = secured.put("alice", Op.WRITE, T.TOPIC, name, AclPermission.DENY)
        assert produce(raw, name) == denied, "a denial comes first"
        with secured.admin() as admin:
            acls.remove(admin, AclFilter(T.TOPIC, name, permission=binding.entry.permission))
        assert produce(raw, name) == ErrorCode.NONE


@pytest.mark.rule("SEC-9")
def test_a_topic_without_describe_is_not_told_apart_from_none(secured, topic_of_admin):
    with secured.raw("alice") as raw:
        hidden = raw.metadata(topic_of_admin).topics[0]
        missing = raw.metadata("no-such-topic").topics[0]
        assert hidden.error_code == missing.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert hidden.topic_id is None
        every = raw.ask(ApiKey.METADATA, 9, **everything())
        assert topic_of_admin not in {topic.name for topic in every.topics}
    with secured.raw("admin") as raw:
        every = raw.ask(ApiKey.METADATA, 9, **everything())
        assert topic_of_admin in {topic.name for topic in every.topics}


def everything() -> dict[str, object]:
    return {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }


@pytest.mark.rule("SEC-9", "FRM-11", "ADM-32")
def test_requests_of_brokers_need_cluster_action(secured, topic_of_admin):
    """CVE-2018-17196, CVE-2018-1288: a client that calls itself a follower is not believed."""
    with secured.raw("alice") as raw:
        code = fetch(raw, topic_of_admin, replica_id=1)
        assert code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        response = raw.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, broker_id=1, broker_epoch=0)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        response = raw.ask(ApiKey.ELECT_LEADERS, 0, topic_partitions=None, timeout=1000)
        assert response.replica_election_results == ()
        response = raw.ask(
            ApiKey.ELECT_LEADERS, 1, election_type=0, topic_partitions=None, timeout=1000
        )
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        response = raw.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=1, broker_epoch=0)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.rule("SEC-9")
def test_a_transactional_batch_without_an_id_is_denied(secured, topic_of_admin):
    secured.allow("alice", Op.WRITE, T.TOPIC, topic_of_admin)
    with secured.raw("alice") as raw:
        data = bytearray(batch(b"x"))
        data[22] |= 0x10
        code = produce(raw, topic_of_admin, bytes(data))
        assert code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.rule("SEC-9", "SEC-8a")
def test_idempotent_producers_need_write_on_any_topic(secured, topic_of_admin):
    """CVE-2017-12610 and its kin: what is asked for is judged by who asks."""
    asked = {"transactional_id": None, "transaction_timeout": 1000}
    with secured.raw("alice") as raw:
        with secured.admin() as admin:
            acls.remove(admin, AclFilter(T.TOPIC, principal="User:alice"))
        refused = raw.ask(ApiKey.INIT_PRODUCER_ID, 1, **asked)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        secured.allow("alice", Op.WRITE, T.TOPIC, topic_of_admin)

        def has_id() -> bool:
            return raw.ask(ApiKey.INIT_PRODUCER_ID, 1, **asked).error_code == ErrorCode.NONE

        wait_until(has_id, "a producer gets an id")
        with_id = raw.ask(ApiKey.INIT_PRODUCER_ID, 1, **{**asked, "transactional_id": "tx"})
        assert with_id.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.rule("SEC-9")
def test_groups_need_read_and_are_listed_for_those_who_may_describe(secured):
    group = f"group-{uuid.uuid4().hex[:6]}"
    with secured.raw("alice") as raw:
        found = raw.ask(ApiKey.FIND_COORDINATOR, 1, key=group, key_type=0)
        assert found.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        beat = raw.ask(ApiKey.HEARTBEAT, 0, group_id=group, generation_id=0, member_id="m")
        assert beat.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        secured.allow("alice", Op.READ, T.GROUP, group)
        beat = raw.ask(ApiKey.HEARTBEAT, 0, group_id=group, generation_id=0, member_id="m")
        assert beat.error_code != ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.rule("SEC-9")
def test_creating_a_topic_needs_create_and_a_denied_one_does_not_stop_the_others(secured):
    prefix = f"created-{uuid.uuid4().hex[:6]}-"
    secured.put("alice", Op.CREATE, T.TOPIC, prefix, AclPermission.ALLOW, PatternType.PREFIXED)
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    with secured.raw("alice") as raw:
        response = raw.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[{"name": "not-mine", **new}, {"name": f"{prefix}a", **new}],
            timeout=10_000,
            validate_only=False,
        )
    codes = {topic.name: topic.error_code for topic in response.topics}
    assert codes == {"not-mine": ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{prefix}a": 0}
    made = next(topic for topic in response.topics if topic.name == f"{prefix}a")
    assert made.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (made.num_partitions, made.replication_factor, made.configs) == (-1, -1, ())


@pytest.mark.rule("SEC-9")
def test_a_topic_is_deleted_by_id_only_by_those_who_may(secured, topic_of_admin):
    with secured.raw("admin") as raw:
        topic_id = raw.metadata(topic_of_admin).topics[0].topic_id
    with secured.raw("alice") as raw:
        asked = {"topics": [{"name": None, "topic_id": topic_id}], "timeout": 1000}
        (result,) = raw.ask(ApiKey.DELETE_TOPICS, 6, **asked).responses
        assert result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert result.name is None
        asked = {"topics": [{"name": None, "topic_id": uuid.uuid4()}], "timeout": 1000}
        (result,) = raw.ask(ApiKey.DELETE_TOPICS, 6, **asked).responses
        assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.rule("SEC-7", "SEC-7a")
def test_acls_are_in_kafkas_znodes_and_followed_from_there(secured, topic_of_admin):
    name = topic_of_admin
    secured.allow("alice", Op.READ, T.TOPIC, name)
    path = f"/kafka-acl/Topic/{name}"
    assert secured.cluster.znode(path) == {
        "version": 1,
        "acls": [
            {
                "principal": "User:alice",
                "permissionType": "Allow",
                "operation": "Read",
                "host": "*",
            }
        ],
    }
    # Another broker, of Apache Kafka as well, writes the znode and announces it.
    entry = AccessControlEntry("User:alice", "*", Op.READ, AclPermission.DENY)
    pattern = ResourcePattern(T.TOPIC, name)
    secured.cluster.zk.set(path, acl_znodes.encode_entries([entry]))
    secured.cluster.zk.create(
        f"{acl_znodes.LITERAL_CHANGES}/{acl_znodes.CHANGE_PREFIX}",
        acl_znodes.encode_change(pattern),
        sequence=True,
    )
    with secured.admin() as admin:
        wait_until(
            lambda: acls.describe(admin, AclFilter(T.TOPIC, name)) == [AclBinding(pattern, entry)],
            "the broker follows the notification",
        )


@pytest.mark.rule("SEC-7a")
@pytest.mark.parametrize(
    ("type_", "name", "pattern", "operation"),
    [
        (T.CLUSTER, "other", 3, Op.READ),
        (T.TOPIC, "", 3, Op.READ),
        (T.TOPIC, "a/b", 3, Op.READ),
        (T.ANY, "a", 3, Op.READ),
        (T.TOPIC, "a", 2, Op.READ),
        (T.TOPIC, "a", 3, Op.ANY),
        (T.TOPIC, "a", 0, Op.READ),
    ],
)
def test_an_acl_that_makes_no_sense_is_refused_and_stores_nothing(
    secured, type_, name, pattern, operation
):
    creation = {
        "resource_type": type_,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": "User:x",
        "host": "*",
        "operation": operation,
        "permission_type": AclPermission.ALLOW,
    }
    with secured.raw("admin") as raw:
        (result,) = raw.ask(ApiKey.CREATE_ACLS, 1, creations=[creation]).results
        assert result.error_code == ErrorCode.INVALID_REQUEST
    with secured.admin() as admin:
        assert not acls.describe(admin, AclFilter(principal="User:x"))


@pytest.mark.rule("SEC-4a")
def test_users_are_altered_whole_or_not_at_all(secured):
    def upsert(name: str, mechanism: int = 1, iterations: int = 4096) -> dict[str, object]:
        return {
            "name": name,
            "mechanism": mechanism,
            "iterations": iterations,
            "salt": b"salt",
            "salted_password": b"x" * 32,
        }

    def alter(deletions=(), upsertions=()) -> dict[str, int]:
        with secured.raw("admin") as raw:
            response = raw.ask(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
                0,
                deletions=list(deletions),
                upsertions=list(upsertions),
            )
        return {result.user: result.error_code for result in response.results}

    bad = ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert alter(upsertions=[upsert("")]) == {"": bad}
    assert alter(upsertions=[upsert("u", iterations=4095)]) == {"u": bad}
    assert alter(upsertions=[upsert("u", iterations=16385)]) == {"u": bad}
    assert alter(upsertions=[upsert("u", 7)]) == {"u": ErrorCode.UNSUPPORTED_SASL_MECHANISM}
    assert alter(upsertions=[upsert("u"), upsert("u")]) == {"u": ErrorCode.DUPLICATE_RESOURCE}
    assert alter(upsertions=[upsert("u"), upsert("u", iterations=1)]) == {"u": bad}
    missing = [{"name": "u", "mechanism": 2}]
    assert alter(missing, [upsert("u")]) == {"u": ErrorCode.RESOURCE_NOT_FOUND}
    with secured.admin() as admin:
        assert users.describe(admin, ["u"]) == [], "one bad part leaves all as it was"
        assert alter(upsertions=[upsert("u")]) == {"u": ErrorCode.NONE}
        assert [each.iterations for each in users.describe(admin, ["u"])] == [4096]
        users.remove(admin, "u", ScramMechanism.SCRAM_SHA_256)
        assert users.describe(admin, ["u"]) == []
    with secured.raw("alice") as raw:
        response = raw.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.rule("SEC-11b")
def test_quotas_are_kept_in_kafkas_znodes_and_removed_with_them(secured):
    with secured.admin() as admin:
        entity = QuotaEntity("bob *", "app")
        quotas.alter(admin, entity, {"producer_byte_rate": 1048576, "request_percentage": 12.5})
        path = "/config/users/bob%20%2A/clients/app"
        assert secured.cluster.znode(path)["config"] == {
            "producer_byte_rate": "1048576",
            "request_percentage": "12.5",
        }
        found = [each for each in quotas.describe(admin) if each.user == "bob *"]
        assert found[0].quotas == {"producer_byte_rate": 1048576, "request_percentage": 12.5}
        quotas.alter(admin, entity, {}, ["producer_byte_rate", "request_percentage"])
        assert secured.cluster.znode(path) is None
        assert secured.cluster.znode("/config/users/bob%20%2A") is None


@pytest.mark.rule("SEC-11b")
@pytest.mark.parametrize(
    ("entity", "values"),
    [
        (QuotaEntity(), {"producer_byte_rate": 1}),
        (QuotaEntity(user=""), {"producer_byte_rate": 1}),
        (QuotaEntity(user="u", ip="10.0.0.1"), {"connection_creation_rate": 1}),
        (QuotaEntity(ip="no such host"), {"connection_creation_rate": 1}),
        (QuotaEntity(user="u"), {"connection_creation_rate": 1}),
        (QuotaEntity(user="u"), {"no_such_rate": 1}),
        (QuotaEntity(user="u"), {"producer_byte_rate": 1.5}),
    ],
    ids=str,
)
def test_a_quota_that_makes_no_sense_is_refused(secured, entity, values):
    with secured.admin() as admin, pytest.raises(KafkaError) as refused:
        quotas.alter(admin, entity, values)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.rule("SEC-11")
def test_a_producer_beyond_its_rate_is_told_and_muted(secured, topic_of_admin):
    secured.allow("alice", Op.WRITE, T.TOPIC, topic_of_admin)
    with secured.admin() as admin:
        quotas.alter(admin, QuotaEntity(user="alice"), {"producer_byte_rate": 1000})
        try:
            with secured.raw("alice") as raw:
                values = produce_values(topic_of_admin, batch(b"x" * 11_500))
                response = raw.ask(ApiKey.PRODUCE, 9, **values)
                # B / limit - 10 s, and a little for the request around the records.
                assert 1.4 < response.throttle_time.total_seconds() < 2.5
                assert response.responses[0].partition_responses[0].error_code == 0
        finally:
            quotas.alter(admin, QuotaEntity(user="alice"), {}, ["producer_byte_rate"])


@pytest.mark.rule("SEC-10", "SEC-7a")
def test_without_an_authorizer_everything_is_allowed_and_acls_are_disabled(cluster):
    with Raw(cluster[1].port) as raw:
        response = raw.ask(ApiKey.CREATE_ACLS, 1, creations=[])
        assert response.results == ()
        asked = {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        response = raw.ask(ApiKey.DESCRIBE_ACLS, 1, **asked)
        assert response.error_code == ErrorCode.SECURITY_DISABLED


@pytest.mark.rule("SEC-21")
def test_whoever_is_served_first_after_a_restart_is_known_and_judged(secured, topic_of_admin):
    secured.allow("alice", Op.READ, T.TOPIC, topic_of_admin)
    broker = secured.cluster[1]
    assert broker.stop() == 0
    broker.start()

    def first_answer() -> object:
        try:
            with secured.admin("SASL_PLAINTEXT", "alice", "SCRAM-SHA-512") as admin:
                return admin.metadata([topic_of_admin]).topics[0]
        except UnavailableError:
            return None  # nobody listens yet

    try:
        # A broker that served before it had read its users would refuse the login for good.
        response = wait_until(first_answer, "the broker listens again")
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert response.error_code != denied, "the ACLs were read before anybody was served"
    finally:
        secured.cluster.wait_ready()
