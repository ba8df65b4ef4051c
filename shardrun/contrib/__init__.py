"""Serve libraries that handlers may use; each module imports its library, and nothing else of shardrun imports these."""
