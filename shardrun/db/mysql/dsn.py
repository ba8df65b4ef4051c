"""Read a DSN of MySQL or MariaDB into what its driver is told. No exception of this module repeats any part of a secret."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

PORT = 3306


class UnreadableDsn(Exception):
    """Why a DSN cannot be read: a sentence without any value of it."""


@dataclass(frozen=True, slots=True)
class Account:
    """Whom to connect to, as whom; `settings` are the DSN's own, typed; `driver` is the one that it asks for, if any."""

    host: str
    port: int
    user: str | None
    password: str
    database: str
    settings: Mapping[str, Any]
    driver: str = ""


def read(rest: str, driver: str = "") -> Account:
    """Read what follows `mysql://`; raises `UnreadableDsn`."""
    if "#" in rest:
        raise UnreadableDsn("a # in it must be written as %23")
    try:
        parts = urlsplit(f"mysql://{rest}")
        host, port = unquote(parts.hostname or "localhost"), parts.port or PORT
    except ValueError:
        raise UnreadableDsn("its host or port is none") from None
    database = unquote(parts.path[1:])
    if not database:
        raise UnreadableDsn("it names no database")
    return Account(
        host=host,
        port=port,
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password or ""),
        database=database,
        settings=_settings(parts.query),
        driver=driver,
    )


def _settings(query: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for written, value in parse_qsl(query, keep_blank_values=True):
        name = written.replace("-", "_")
        if name not in TYPES:
            # Behind a bare / and ? in a password, its end stands where a setting's name does.
            called = "of that name" if "@" in query else repr(written)
            raise UnreadableDsn(f"the driver has no setting {called} that a DSN may give. Known: {', '.join(TYPES)}")
        try:
            settings[name] = TYPES[name](value)
        except ValueError:
            raise UnreadableDsn(f"its setting {written} has a value that does not fit") from None
    settings.pop("charset", None)  # utf8mb4 always: every character that Python has can be written and read
    return settings


def _yes(value: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if value.lower() not in known:
        raise ValueError
    return known[value.lower()]


def _seconds(value: str) -> int:
    if int(value) <= 0:
        raise ValueError
    return int(value)


def _unicode(value: str) -> str:
    if not value.lower().startswith("utf8"):
        raise ValueError
    return value


TYPES: Mapping[str, Callable[[str], Any]] = {
    "unix_socket": str,
    "bind_address": str,
    "charset": _unicode,
    "collation": str,
    "sql_mode": str,
    "init_command": str,
    "read_default_file": str,
    "read_default_group": str,
    "connect_timeout": _seconds,
    "read_timeout": _seconds,
    "write_timeout": _seconds,
    "local_infile": _yes,
    "ssl": _yes,
    "ssl_disabled": _yes,
    "ssl_ca": str,
    "ssl_cert": str,
    "ssl_key": str,
    "ssl_key_password": str,
    "ssl_verify_cert": _yes,
    "ssl_verify_identity": _yes,
}
"""What a DSN may say to the driver, and how its text is read."""


def for_pymysql(account: Account) -> dict[str, Any]:
    """Give the keywords of `pymysql.connect`."""
    settings = dict(account.settings)
    if settings.pop("ssl", False) and not any(settings.get(name) for name in settings if name.startswith("ssl_")):
        settings["ssl"] = _encrypted()
    return {
        "host": account.host,
        "port": account.port,
        "user": account.user,
        "password": account.password.encode(),  # a str would be sent in latin-1, or refused
        "database": account.database,
        "charset": "utf8mb4",
        **settings,
    }


def _encrypted() -> ssl.SSLContext:
    """Make a context that insists on encryption, and takes any certificate: ssl_ca says which ones to trust."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def for_mysqldb(account: Account) -> dict[str, Any]:
    """Give the keywords of `MySQLdb.connect`, whose settings for encryption are others."""
    kept = ("unix_socket", "sql_mode", "init_command", "read_default_file", "read_default_group", "local_infile")
    settings = {
        name: value
        for name, value in account.settings.items()
        if name in kept or name.endswith(("_timeout", "collation"))
    }
    given = account.settings
    files = {name: given[f"ssl_{name}"] for name in ("ca", "cert", "key") if f"ssl_{name}" in given}
    mode = (
        ("DISABLED" if given.get("ssl_disabled") else None)
        or ("VERIFY_IDENTITY" if given.get("ssl_verify_identity") else None)
        or ("VERIFY_CA" if given.get("ssl_verify_cert") else None)
        or ("REQUIRED" if given.get("ssl") or files else None)
    )
    settings |= ({"ssl": files} if files else {}) | ({"ssl_mode": mode} if mode else {})
    settings |= {"user": account.user} if account.user else {}
    return {
        "host": account.host,
        "port": account.port,
        "password": account.password,
        "database": account.database,
        "charset": "utf8mb4",
        **settings,
    }
