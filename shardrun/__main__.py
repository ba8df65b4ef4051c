"""Be the same program as the `shardrun` command: `python -m shardrun`."""

from shardrun.cli import main

if __name__ == "__main__":
    main()
