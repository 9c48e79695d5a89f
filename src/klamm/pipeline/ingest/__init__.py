"""From topic to table, exactly once: `klamm ingest` and the same from Python.

The driver plans which offsets a batch has and logs the plan. Spark's tasks read their offsets,
parse the records into columns and write Parquet files. The driver logs the list of files and
commits it to the table, together with the id of the query and the number of the batch. A batch that
is tried again is recognised by both, so each offset is in the table once.
"""
