"""Measure shardrun beside hand-written loops that run the same statements: `make bench`, or `python -m bench`."""
