"""How Spark is set up where tables have some rows only."""

from typing import Final

#: Such tables are done before anything that makes large ones fast has paid for itself: the JVM's
#: second compiler, code generated for each query, and plans that are made anew on the way.
FOR_LITTLE_DATA: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
