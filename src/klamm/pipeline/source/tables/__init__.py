"""The cluster as tables: option("table", "partitions") and its siblings."""
