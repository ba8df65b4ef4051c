"""The demo: measure the standard library on all cores. `python -m shardrun.demo`, or `make demo`."""
