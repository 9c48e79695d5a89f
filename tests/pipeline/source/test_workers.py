"""What is left of the imports of a task when the next one begins."""

import importlib
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from klamm.pipeline.source.workers import forget_spark_archives


def archive(path: Path, *modules: str) -> None:
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as file:
        for module in modules:
            file.writestr(f"{module}.py", "VALUE = 1\n")


@pytest.mark.parametrize("package", ["pyspark.zip/pyspark/__init__.py", "../../__init__.py"])
def test_spark_s_own_archives_are_not_read_again_before_each_task(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
):
    own, foreign = tmp_path / "spark/python/lib/pyspark.zip", tmp_path / "user/added.zip"
    archive(own, "of_spark_first", "of_spark_second")
    archive(foreign, "of_a_user")
    for each in (own, foreign):
        monkeypatch.syspath_prepend(str(each))
    monkeypatch.setattr(pyspark, "__file__", str((own.parent / package).resolve()))
    importlib.import_module("of_spark_first")
    importlib.import_module("of_a_user")
    try:
        assert {str(own), str(foreign)} <= {*sys.path_importer_cache}
        forget_spark_archives()
        assert str(own) not in sys.path_importer_cache
        assert str(foreign) in sys.path_importer_cache
        importlib.invalidate_caches()
        assert importlib.import_module("of_spark_second").VALUE == 1
    finally:
        for name in ("of_spark_first", "of_spark_second", "of_a_user"):
            sys.modules.pop(name, None)
