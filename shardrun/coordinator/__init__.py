"""Run one replica: claim rows, route them to the children's lanes, settle what the children report."""
