"""Inter-broker protocol versions: forms, order and feature gates."""

import pytest

from klamm.config.ibp import LATEST, Ibp
from klamm.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("3.9", "3.9-IV0"),
        ("3.9.1", "3.9-IV0"),
        ("2.8", "2.8-IV1"),
        ("2.8-IV0", "2.8-IV0"),
        ("2.7", "2.7-IV2"),
        ("0.10.1", "0.10.1-IV2"),
        ("0.9.0", "0.9.0"),
        ("0.8.2.1", "0.8.2"),
        (" 3.4 ", "3.4-IV0"),
    ],
)
def test_a_line_stands_for_its_last_version(text: str, meaning: str):
    assert str(Ibp.parse(text)) == meaning


@pytest.mark.parametrize("text", ["9.9", "2.7-IV9", "4.0", "3", "", "0.9.0-IV0", "3.9-IVx", "x"])
def test_a_version_that_never_was_is_refused(text: str):
    with pytest.raises(ConfigError, match="is not a valid version"):
        Ibp.parse(text)


def test_versions_are_ordered_by_number_and_not_by_letters():
    lines = ["0.8.2", "0.10.0-IV1", "0.10.2-IV0", "1.0", "2.0-IV0", "2.0-IV1", "3.9"]
    versions = [Ibp.parse(line) for line in lines]
    assert versions == sorted(versions, reverse=True)[::-1]
    assert versions[-1] == LATEST


@pytest.mark.rule("CONF-3")
@pytest.mark.parametrize(
    ("gate", "before", "since"),
    [
        ("has_feature_versioning", "2.6", "2.7-IV0"),
        ("has_alter_partition", "2.7-IV1", "2.7-IV2"),
        ("has_topic_ids", "2.7", "2.8-IV0"),
        ("has_leader_recovery_state", "3.1", "3.2-IV0"),
    ],
)
def test_a_feature_begins_with_its_version(gate: str, before: str, since: str):
    assert not getattr(Ibp.parse(before), gate)
    assert getattr(Ibp.parse(since), gate)
    assert getattr(LATEST, gate)


@pytest.mark.rule("ZK-20")
def test_features_are_written_in_version_2_since_3_3():
    assert Ibp.parse("3.2").feature_znode_version == 1
    assert Ibp.parse("3.3-IV0").feature_znode_version == 2
