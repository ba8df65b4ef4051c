"""Start a child: read what the coordinator wrote for it, look for modules where it does, and only then import.

Run as `python -P main.py <descriptor>`. What the descriptor holds is JSON, and in no argument list or environment, because
a DSN may carry a password. Nothing of shardrun is imported at the top, so that `sys.path` is right before the first of it.
"""

import contextlib
import json
import os
import sys


def main() -> None:
    """Read the spec and live by it."""
    descriptor = int(sys.argv[1])
    with contextlib.suppress(OSError):  # A pipe has no beginning to go back to.
        os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb") as file:
        written = file.read()
    try:
        spec = json.loads(written)
    except ValueError:  # The coordinator died before it had written all of it; nobody is left to be told.
        os._exit(75)
    sys.path[:] = spec["path"]
    from shardrun.child.loop import live

    live(spec)


# A handler that spawns processes of its own has them import this file again, under another name.
if __name__ == "__main__":
    main()
