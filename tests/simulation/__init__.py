"""A cluster in one process: klamm's own code on simulated time, network, disk and ZooKeeper.

docs/simulation.md says what is checked and how to reproduce a failure.
"""
