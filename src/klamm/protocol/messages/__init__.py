"""The messages, or old versions of them, that kio lacks, declared from the specification's tables.

A module is named after its API and declares `REQUEST` and `RESPONSE`.
"""
