"""Spark's format("klamm"): topics of any Kafka cluster as data frames, both ways, without a jar."""
