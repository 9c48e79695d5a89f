"""What goes into the wheel `pyspark-klamm`."""

import re

from tools.spark_wheel import DEPENDENCIES, OPTIONAL, SOURCE, modules, third_parties


def test_it_asks_for_what_its_modules_import_and_for_nothing_else():
    asked = {re.split(r"[<>=]", each)[0].replace("-", "_") for each in DEPENDENCIES}
    assert asked == third_parties() - OPTIONAL


def test_it_has_the_source_and_not_the_rest_of_klamm():
    own = [path for path in modules() if path.is_relative_to(SOURCE / "klamm")]
    places = {path.relative_to(SOURCE / "klamm").parts[0] for path in own}
    assert {"pipeline", "protocol", "client", "net", "errors.py"} <= places
    assert not places & {"broker", "controller", "core", "local", "cli", "zookeeper"}
