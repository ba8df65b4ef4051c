"""Run handlers in an OS process of their own, and report how each run ended."""
