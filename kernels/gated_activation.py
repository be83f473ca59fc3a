"""The middle of a gated feed-forward layer (Shazeer 2020, "GLU Variants Improve Transformer")."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn.functional import gelu, silu

from .cpu_library import LANES, cpu_library

Activation = Literal["silu", "gelu_tanh"]
_NUMBERS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}


def gated_activation(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """``activation(gate) * up``.

    Args:
        gate_up: ``[rows, 2 * width]``, contiguous; the gates come first.
        activation: SiLU, or GELU in its tanh form.

    Returns:
        ``[rows, width]`` in the same dtype.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    library = cpu_library(gate_up)
    if library is not None and width % LANES == 0:
        output = torch.empty((rows, width), dtype=gate_up.dtype)
        library.gated_activation(gate_up.data_ptr(), output.data_ptr(), rows, width, _NUMBERS[activation])
        return output
    gate, up = gate_up.chunk(2, dim=-1)
    return (silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")) * up
