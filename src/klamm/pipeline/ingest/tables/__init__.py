"""Tables that an ingestion writes to: what they have in common, and how each commits."""
