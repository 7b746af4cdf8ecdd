"""The decisions of clients/ALGORITHM.md, with the names of that page, and without I/O, clock or randomness.

A machine gets one input at a time, with the time in ms, and returns outputs, of which at most one, the last, is an
operation that takes time: clients/traces/README.md lists them all, with the words that are used here. The simulation
runs the same machine, written in Rust; tests/traces.py replays its traces here. Whatever runs from a call to its end
is a generator, which yields operations and gets their results.
"""

from .attempt import Attempt
from .hold import Holding
from .release import Release

__all__ = ["Attempt", "Holding", "Release"]
