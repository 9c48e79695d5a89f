"""The modules of a Python worker of Spark, from one task to the next.

Before each task Spark calls `importlib.invalidate_caches`, for archives that a user has added. With
that, Python reads the directory of each archive that modules came from again, once for each of its
packages. Spark's own are `pyspark.zip` and some more, and a task began a tenth of a second later.
"""

import sys
from pathlib import Path
from zipimport import zipimporter

import pyspark


def forget_spark_archives() -> None:
    """Drop the finders of Spark's own archives, which do not change while a worker lives.

    An import makes its finder again, from the directory of the archive that Python has kept.
    """
    home = _spark_home(pyspark.__file__)
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and Path(finder.archive).is_relative_to(home):
            del sys.path_importer_cache[path]


def _spark_home(package: str) -> Path:
    """Where Spark is: `pyspark` is a folder of it, or in `python/lib/pyspark.zip` below it."""
    for parent in Path(package).parents:
        if parent.suffix == ".zip":
            return parent.parents[2]
    return Path(package).parent
