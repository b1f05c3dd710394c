"""Hypothesis, of all unit tests: no example is judged by how long it took on this machine.

Its usual 200 ms are a collection of garbage, or a neighbour's turn: a failure by them says nothing
of the code. A test that hangs is ended by its own `--timeout`.
"""

from hypothesis import settings

settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")
