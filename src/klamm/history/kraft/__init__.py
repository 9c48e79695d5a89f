"""The history of a cluster in KRaft mode, from its metadata log."""
