"""The same server as Celery and kombu are told of it.

Both read URLs in their own way: neither knows commas between sentinels, kombu fails at query fields that redis-py
takes, and leaves certificates unchecked where a ``rediss://`` URL does not ask for it. So Celery gets a URL that is
written anew from the parts.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import quote, urlencode

from .sentinel import sentinel_options
from .server_url import ServerUrl, parse_server_url

_CHECKS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def celery_url(url: str) -> str:
    """The URL for Celery's broker and result backend; for sentinels, :func:`celery_connection` has the rest.

    Raises:
        MalformedUrl: where the URL is none.
    """
    return _url(parse_server_url(url))


def celery_connection(url: str) -> dict[str, Any]:
    """Celery's settings that say where the broker and the result backend are, and how to get there.

    Raises:
        MalformedUrl: where the URL is none.
    """
    parsed = parse_server_url(url)
    settings: dict[str, Any] = {
        "broker_url": _url(parsed),
        "result_backend": _url(parsed),
        "broker_transport_options": {},
        "result_backend_transport_options": {},
    }
    if parsed.sentinels:
        options = {"master_name": parsed.primary, "sentinel_kwargs": sentinel_options(parsed)}
        settings["broker_transport_options"] = dict(options)
        settings["result_backend_transport_options"] = dict(options)
        if parsed.tls:
            certificates = {**parsed.ssl_options, "ssl_cert_reqs": _CHECKS[_checks(parsed)]}
            settings["broker_use_ssl"] = dict(certificates)
            settings["redis_backend_use_ssl"] = dict(certificates)
    return settings


def _url(parsed: ServerUrl) -> str:
    database = parsed.options.get("db", 0)
    if "path" in parsed.options:
        return f"redis+socket://{_login(parsed)}{quote(parsed.options['path'])}?virtual_host={database}"
    if parsed.sentinels:
        # kombu goes on with the next of these when it connects again, so each has all that it needs.
        return ";".join(f"sentinel://{_login(parsed)}{_place(*server)}/{database}" for server in parsed.sentinels)
    place = _place(parsed.options.get("host", "localhost"), parsed.options.get("port", 6379))
    if not parsed.tls:
        return f"redis://{_login(parsed)}{place}/{database}"
    query = urlencode({**parsed.ssl_options, "ssl_cert_reqs": _checks(parsed)})
    return f"rediss://{_login(parsed)}{place}/{database}?{query}"


def _checks(parsed: ServerUrl) -> str:
    """What is asked of the server's certificate; redis-py's default is Celery's nowhere."""
    return str(parsed.options.get("ssl_cert_reqs", "required"))


def _login(parsed: ServerUrl) -> str:
    user, password = parsed.options.get("username", ""), parsed.options.get("password", "")
    if not user and not password:
        return ""
    return f"{quote(user, safe='')}:{quote(password, safe='')}@"


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{quote(host)}:{port}"
