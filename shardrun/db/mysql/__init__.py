"""Speak MySQL and MariaDB, through PyMySQL or mysqlclient."""
