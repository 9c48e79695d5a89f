"""What the controller does for each event, as generators of effects.

Each procedure follows one section of docs/spec/controller.md. It reads the cluster, yields what has
to be done (`klamm.core.effects`) and records what came of it. It never performs anything itself.
"""
