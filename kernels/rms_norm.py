"""Root mean square norm (Zhang and Sennrich 2019), with the residual sum before it."""

from __future__ import annotations

import torch

from .cpu_library import LANES, cpu_library


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """``weight * y / sqrt(mean(y ** 2) + epsilon)`` by rows, where y is x, or the sum of x and the residual.

    Args:
        x: ``[rows, width]``, contiguous.
        weight: float32 ``[width]``.
        epsilon: keeps a row of zeros finite.
        residual: as x; becomes the sum, in place.

    Returns:
        ``[rows, width]`` in x's dtype.
    """
    rows, width = x.shape
    library = cpu_library(x)
    if library is not None and width % LANES == 0:
        output = torch.empty_like(x)
        at = None if residual is None else residual.data_ptr()
        library.rms_norm(x.data_ptr(), at, weight.data_ptr(), output.data_ptr(), rows, width, epsilon)
        return output
    if residual is not None:
        x = residual.add_(x)
    normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
    return (normed * weight).to(x.dtype)
