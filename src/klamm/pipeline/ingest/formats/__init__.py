"""From the bytes of records to columns: one module for each format."""
