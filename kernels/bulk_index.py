"""All integers of a step in one tensor, so that they reach the device in one copy."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class BulkIndex:
    """Gathers lists of integers on the host; each gets its slice of one int64 tensor."""

    def __init__(self) -> None:
        self._values: list[int] = []

    def put(self, values: Iterable[int]) -> slice:
        """Add integers and return where they will be."""
        start = len(self._values)
        self._values += values
        return slice(start, len(self._values))

    def to(self, device: torch.device) -> torch.Tensor:
        """The tensor, int64 ``[n]``, on ``device``."""
        index = torch.tensor(self._values, dtype=torch.int64)
        return index if device.type == "cpu" else index.pin_memory().to(device, non_blocking=True)
