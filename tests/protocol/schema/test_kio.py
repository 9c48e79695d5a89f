"""What klamm takes from kio, and what it must not take along."""

import subprocess
import sys
from pathlib import Path

import pytest

from klamm.protocol.codes import ErrorCode
from klamm.protocol.schema._kio import KioErrorCode

PROTOCOL = Path(__file__).parents[3] / "src" / "klamm" / "protocol"

LOAD_EVERYTHING_A_BROKER_NEEDS = """
import sys
import klamm.protocol.codec.frames, klamm.protocol.records
from klamm.protocol.schema.lookup import message_schema
message_schema(3, 12, "request")
heavy = {"hypothesis", "numpy", "pyarrow"} & sys.modules.keys()
assert not heavy, heavy
import hypothesis
assert hypothesis.__version__
"""


def test_a_broker_loads_neither_numpy_nor_the_test_support_of_kio():
    subprocess.run([sys.executable, "-c", LOAD_EVERYTHING_A_BROKER_NEEDS], check=True)


def test_kio_is_imported_in_one_place():
    importers = [
        str(path.relative_to(PROTOCOL))
        for path in PROTOCOL.rglob("*.py")
        if any(
            line.strip().startswith(("import kio", "from kio"))
            for line in path.read_text().splitlines()
        )
    ]
    assert importers == ["schema/_kio.py"]


@pytest.mark.rule("API-14")
def test_every_code_of_kafka_can_be_read_by_kio():
    # kio refuses a message with a code that its enumeration does not have.
    assert {int(code) for code in ErrorCode} <= {int(code) for code in KioErrorCode}
    assert all(code.retriable == KioErrorCode(int(code)).retriable for code in ErrorCode)
