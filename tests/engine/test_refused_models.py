"""Models that would be computed wrongly are refused while they load, in one sentence that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headrace.engine import ModelError
from transformers import (
    BertConfig,
    DiffLlamaConfig,
    DogeConfig,
    FalconConfig,
    Gemma3TextConfig,
    GptOssConfig,
    Lfm2Config,
    MiniCPM3Config,
    NemotronConfig,
    PhimoeConfig,
    Qwen2MoeConfig,
)

from .tiny_models import SMALL, VOCABULARY, llama_config, load, save_model

SLIDING = SMALL | {"sliding_window": 8}
MOE = {"num_experts_per_tok": 2, "num_local_experts": 4}
HEADS = {"vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (BertConfig(vocab_size=64, hidden_size=48, num_attention_heads=6, intermediate_size=64), "is not causal"),
        (Gemma3TextConfig(**SLIDING, use_bidirectional_attention=True), "is not causal"),
        (Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]), "layers of the kind conv"),
        (GptOssConfig(**SLIDING, **MOE), "attention sinks are not supported"),
        (DogeConfig(**SMALL), "mask keys by a rule of their own"),
        (PhimoeConfig(**SLIDING, **MOE), r"hides keys past 8 tokens in 2 of its layers .* attention of 0"),
        (
            Qwen2MoeConfig(**SLIDING, use_sliding_window=True, max_window_layers=1, num_experts=4),
            r"hides keys past 8 tokens in 1 of its layers .* attention of 0",
        ),
        (DiffLlamaConfig(**SMALL), "layer 0 of this model attends twice"),
        (NemotronConfig(**SMALL), "does not hand on to its attention what it is called with"),
        (FalconConfig(**HEADS), "type falcon does not let its attention be exchanged"),
        (
            MiniCPM3Config(**SMALL),
            "layer 0 of this model has 6 key-value heads of 96, where its configuration says 2 of 32",
        ),
    ],
    ids=lambda value: type(value).__name__.removesuffix("Config"),
)
def test_models_that_a_flat_batch_would_compute_wrongly_are_refused(tmp_path: Path, config: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        load(save_model(config, tmp_path))
    assert "\n" not in str(caught.value)


def test_a_window_that_a_configuration_only_mentions_refuses_nothing(tmp_path: Path) -> None:
    """Llama has no windows, whatever its configuration says."""
    load(save_model(llama_config(sliding_window=8), tmp_path))
