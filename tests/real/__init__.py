"""Tests of whole clusters: real processes, a real ZooKeeper, stock clients.

They show what no single module does, and so mirror none. Everything here is marked `real`.
"""
