"""What the URL of a server says: where one is, or which sentinels know where the primary is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import RedisError

from .errors import MalformedUrl

DEFAULT_URL = "redis://localhost:6379/0"
SCHEMES = ("redis", "rediss", "unix", "sentinel")
SENTINEL_PORT = 26379
_SENTINEL_FORM = "sentinel://[[user]:password@]host[:port][,host[:port]...]/PRIMARY_NAME"
# Read off the text and not parsed: in a password that was not escaped, any character may stand.
_LOGIN = re.compile(r"^(\w+://)?+(?!/)([^:@/?#]*):.*@")
_PASSWORD_FIELD = re.compile(r"([?&]\w*password=)[^&#]*", re.IGNORECASE)
_DATABASE = re.compile(r"/?\d*/?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]+)(?::(\d{1,5}))?")
_FILES = {"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"}
_YES = {"1", "true", "yes"}
_NO = {"0", "false", "no"}
_ConnectionClass = type[Connection] | type[UnixDomainSocketConnection]


@dataclass(frozen=True)
class ServerUrl:
    """A URL's parts, decoded."""

    options: dict[str, Any] = field(repr=False)
    """For redis-py's connections to the server: ``host`` and ``port``, or ``path``; ``db``, credentials, ``ssl_*``."""
    tls: bool = False
    """Whether connections, those to sentinels as well, are encrypted."""
    sentinels: tuple[tuple[str, int], ...] = ()
    """Hosts and ports of sentinels; none where the URL names the server itself."""
    primary: str = ""
    """The name by which the sentinels know the primary."""
    sentinel_options: dict[str, Any] = field(default_factory=dict, repr=False)
    """For redis-py's connections to the sentinels: their credentials, and the ``ssl_*`` of the servers."""

    @property
    def ssl_options(self) -> dict[str, Any]:
        """The ``ssl_*`` options; empty without TLS."""
        return _ssl_options(self.options)


def parse_server_url(url: str) -> ServerUrl:
    """Parse a ``redis://``, ``rediss://``, ``unix://`` or ``sentinel://`` URL.

    A sentinel URL is ``sentinel://[[user]:password@]host[:port][,host[:port]...]/PRIMARY_NAME``. The user and the
    password are the server's. Its query may hold ``db``, ``sentinel_username``, ``sentinel_password``, ``ssl=true``
    (for servers and sentinels) and what redis-py takes in a ``redis://`` or ``rediss://`` URL, such as
    ``ssl_ca_certs``.

    Raises:
        MalformedUrl: where it is none of them; the message holds no password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise MalformedUrl(
            f"{without_password(url)!r} is no Redis URL; "
            f"it must look like {DEFAULT_URL}, rediss://..., unix:///path or {_SENTINEL_FORM}"
        )
    try:
        return _parse_sentinels(rest) if scheme == "sentinel" else _parse_server(url)
    except _Unreadable as error:
        raise MalformedUrl(f"{without_password(url)!r} is no Redis URL; {error}") from None
    except (TypeError, ValueError, RedisError):  # its text may quote a part of the password
        raise MalformedUrl(f"{without_password(url)!r} is no Redis URL; a part of it is malformed") from None


class _Unreadable(ValueError):
    """A part is wrong, and the text, which holds no password, says which."""


def _parse_server(url: str) -> ServerUrl:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        if not parts.path:
            raise _Unreadable("the path of the socket is missing")
    elif not _DATABASE.fullmatch(parts.path):
        raise _Unreadable("after the host stands the number of a database, or nothing")
    options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    options.pop("connection_class", None)
    tls = parts.scheme == "rediss"
    _check_options(UnixDomainSocketConnection if parts.scheme == "unix" else _connection_class(tls), options)
    return ServerUrl(options=options, tls=tls)


def _parse_sentinels(rest: str) -> ServerUrl:
    rest, _, query = rest.partition("?")
    login, at, rest = rest.rpartition("@")
    hosts, _, name = rest.partition("/")
    primary = unquote(name)
    if not primary or "/" in primary:
        raise _Unreadable(f"the name of the primary is missing; the form is {_SENTINEL_FORM}")
    sentinels = tuple(_host_and_port(host) for host in hosts.split(","))
    # The login and the query mean what they mean in a plain URL.
    options: dict[str, Any] = parse_url(f"redis://{login}{at}sentinels?{query}")  # type: ignore[no-untyped-call]
    del options["host"]
    tls = _flag("ssl", options.pop("ssl", "false"))
    own = {name.removeprefix("sentinel_"): options.pop(name) for name in list(options) if name.startswith("sentinel_")}
    if unknown := set(own) - {"username", "password"}:
        raise _Unreadable(f"there is no option sentinel_{min(unknown)}")
    _check_options(_connection_class(tls), options)
    return ServerUrl(options, tls, sentinels, primary, sentinel_options={**own, **_ssl_options(options)})


def _host_and_port(text: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    port = int(found[2] or SENTINEL_PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise _Unreadable(f"sentinels stand as host or host:port with commas between; the form is {_SENTINEL_FORM}")
    return unquote(found[1]).strip("[]"), port


def _ssl_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name.startswith("ssl_")}


def _flag(name: str, value: str) -> bool:
    if value.lower() not in _YES | _NO:
        raise _Unreadable(f"{name} is true or false")
    return value.lower() in _YES


def _connection_class(tls: bool) -> _ConnectionClass:
    return SSLConnection if tls else Connection


def _check_options(connection_class: _ConnectionClass, options: dict[str, Any]) -> None:
    """Have redis-py refuse an unknown option now, and not when it first connects."""
    if options.get("db", 0) < 0:
        raise _Unreadable("a database's number is 0 or more")
    connection_class(**{name: value for name, value in options.items() if name != "max_connections"})


def check_files(parsed: ServerUrl, url: str) -> None:
    """Look whether the files that a URL names are there; what TLS says of a missing one does not name it.

    Raises:
        MalformedUrl: naming the file and the option.
    """
    for option in _FILES & set(parsed.options):
        if not Path(parsed.options[option]).exists():
            raise MalformedUrl(f"{without_password(url)!r}: there is no {parsed.options[option]} ({option})")


def without_password(url: str) -> str:
    """A URL that may be shown."""
    # Fields first: an @ in one would be taken for the end of a login.
    return _LOGIN.sub(r"\1\2:***@", _PASSWORD_FIELD.sub(r"\1***", url))
