"""Where files are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Directory for files that can be made again: ``$XDG_CACHE_HOME/headrace``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
