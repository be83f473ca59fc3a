"""From the command line's flags to the engine's settings."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from ..engine import ConfigError, EngineConfig, Tenant
from ..producers.engine_flags import EngineFlags


def engine_config(flags: EngineFlags) -> EngineConfig:
    """The engine's settings from its flags.

    Raises:
        ConfigError: where a value is out of range, or the file of tenants is none.
    """
    values = {field.name: getattr(flags, field.name) for field in fields(flags) if field.name != "tenants"}
    return EngineConfig(**values, tenants=read_tenants(flags.tenants) if flags.tenants else {})


def read_tenants(path: Path) -> dict[str, Tenant]:
    """Shares and limits of tenants from a JSON file: ``{"name": {"weight": 2, "max_running": 8}}``.

    Raises:
        ConfigError: naming the tenant and the setting at fault.
    """
    allowed = [field.name for field in fields(Tenant)]
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"the file of tenants {path} cannot be read: {error}") from error
    tenants = {}
    for name, settings in document.items() if isinstance(document, dict) else [("", document)]:
        if not isinstance(settings, dict) or not settings.keys() <= set(allowed):
            raise ConfigError(f"{path}: tenant {name!r} must be an object of {', '.join(allowed)}")
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in settings.values()):
            raise ConfigError(f"{path}: the settings of tenant {name!r} must be numbers")
        tenants[name] = Tenant(**settings)
    return tenants
