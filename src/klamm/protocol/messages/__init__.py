"""The messages, or old versions of them, that kio lacks, declared from the specification's tables.

A module is named after its API; `REQUEST` and `RESPONSE` make a schema for any version they hold.
"""
