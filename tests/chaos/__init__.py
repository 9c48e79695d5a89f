"""Chaos: real processes and stock clients under faults, and a checker of what the clients saw.

`python -m tests.chaos --minutes 2 --seed 7`, or `make chaos MINUTES=2 SEED=7`; docs/chaos.md says
what is done, what is checked, and how a failure is brought about again.
"""
