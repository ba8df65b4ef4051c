"""Decide, given counts, states and the time: pure code without I/O, clocks, randomness or drivers."""
