from klamm.console.metrics import parse_denials, parse_metrics

PAGE = """\
# TYPE kafka_server_BrokerTopicMetrics_BytesInPerSec_total counter
kafka_server_BrokerTopicMetrics_BytesInPerSec_total 109994
kafka_server_BrokerTopicMetrics_BytesInPerSec_total{topic="a \\"b\\" {c}"} 109994
kafka_server_ReplicaManager_UnderReplicatedPartitions 2
kafka_network_RequestMetrics_RequestsPerSec_total{request="Fetch",version="12"} 7
kafka_network_RequestMetrics_RequestsPerSec_total{request="FetchFollower",version="12"} 7
kafka_network_RequestMetrics_RequestsPerSec_total{request="Produce",version="10"} 3
kafka_network_RequestMetrics_TotalTimeMs{request="Produce",quantile="0.5"} 1.5
kafka_network_RequestMetrics_TotalTimeMs{request="Produce",quantile="0.99"} 16.25
kafka_network_RequestMetrics_TotalTimeMs_sum{request="Produce"} 99
kafka_network_RequestMetrics_TotalTimeMs{request="CreateTopics",quantile="0.5"} 700
kafka_network_RequestMetrics_ErrorsPerSec_total{request="Produce",error="NONE"} 10
kafka_network_RequestMetrics_ErrorsPerSec_total{request="Join",error="GROUP_AUTHORIZATION_FAILED"} 4
kafka_network_RequestMetrics_ErrorsPerSec_total{request="Fetch",error="OFFSET_OUT_OF_RANGE"} 1
kafka_log_Log_Size{topic="orders",partition="0"} 5
"""


def test_counters_gauges_and_times_are_read_from_a_page():
    assert parse_metrics(PAGE) == {
        "bytes_in": 109994.0,
        "under_replicated": 2.0,
        "requests": 10.0,
        "produce_p50_ms": 1.5,
        "produce_p99_ms": 16.25,
        "errors": 5.0,
    }


def test_a_broker_without_errors_has_a_count_of_zero():
    lines = [line for line in PAGE.splitlines() if "ErrorsPerSec" not in line]
    assert parse_metrics("\n".join(lines))["errors"] == 0.0


def test_denials_are_counted_by_request_and_error():
    assert parse_denials(PAGE) == [
        {"request": "Join", "error": "GROUP_AUTHORIZATION_FAILED", "count": 4}
    ]


def test_a_page_that_is_none_has_no_numbers():
    assert parse_metrics("<html>not metrics</html>") == {}
