"""MySQL and MariaDB, through PyMySQL: only what users' own inserts need, so far."""
