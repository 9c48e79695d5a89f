"""What Spark looks for: a module whose name begins with `pyspark_` registers its `DefaultSource`.

An older pyspark must not stumble over this module while it looks for other sources, so there it
gets a source that does nothing but say what is needed.
"""

from typing import Any, Final

import pyspark

_NEEDED: Final = (4, 0)

if tuple(map(int, pyspark.__version__.split(".")[:2])) >= _NEEDED:
    from klamm.pipeline.source.source import KlammDataSource as DefaultSource
else:
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):  # type: ignore[no-redef]  # one of the two exists
        """Stands for format("klamm") where it cannot work."""

        @classmethod
        def name(cls) -> str:
            return "klamm"

        def __init__(self, options: Any) -> None:
            raise RuntimeError(
                f'format("klamm") needs pyspark {".".join(map(str, _NEEDED))} or a newer 4.x; this '
                f"is {pyspark.__version__}."
            )


__all__ = ["DefaultSource"]
