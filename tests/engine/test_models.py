"""Logits of our forward are those of transformers', over the shapes that models have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from headrace.engine import ModelError
from safetensors.torch import load_file, save_file
from transformers import MistralConfig

from .tiny_models import (
    SMALL,
    change_config,
    check_logits,
    llama_config,
    load,
    paged_logits,
    save_model,
    token_ids,
)


@pytest.mark.parametrize("head_dim", [80, 96])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (6, 1), (12, 2), (14, 2)])
def test_d15_head_sizes_and_groups(tmp_path: Path, head_dim: int, heads: int, kv_heads: int) -> None:
    config = llama_config(
        hidden_size=8 * heads,
        head_dim=head_dim,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        initializer_range=0.1,
    )
    check_logits(save_model(config, tmp_path), token_ids(21), [5, 4, 12], [20, 1])


def test_d15_heads_that_cannot_be_shared_are_refused_with_both_numbers(tmp_path: Path) -> None:
    save_model(llama_config(num_attention_heads=3, num_key_value_heads=2), tmp_path)
    with pytest.raises(ModelError, match="3 attention heads cannot be shared among 2 key-value heads"):
        load(tmp_path)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(MistralConfig(**SMALL, sliding_window=8), tmp_path_factory.mktemp("mistral"))


@pytest.mark.parametrize("length", [7, 8, 9, 20])
def test_d17_sliding_window(mistral: Path, length: int) -> None:
    # Chunks that end inside the window, at its edge and past it.
    chunkings = [[4, length - 4], [length - 1, 1], *([[9, 11], [3, 8, 9]] if length == 20 else [])]
    check_logits(mistral, token_ids(length), *chunkings)


def test_d17_the_window_is_really_smaller_than_the_prompt(mistral: Path) -> None:
    """Past the window the first token is forgotten, within one layer's reach of it not."""
    ids = token_ids(20)
    model = load(mistral)
    changed = paged_logits(model, [ids[0] + 1, *ids[1:]], [20]) - paged_logits(model, ids, [20])
    touched = changed.abs().amax(dim=-1) > 1e-6
    assert touched[:8].all()
    assert not touched[2 * 7 + 1 :].any(), "two layers of a window of 8 reach 14 tokens back"


LM_HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
Weights = dict[str, torch.Tensor]


def edit_weights(directory: Path, edit: Callable[[Weights], None]) -> None:
    path = directory / "model.safetensors"
    weights = load_file(path)
    edit(weights)
    save_file(weights, path, metadata={"format": "pt"})


def drop_head(weights: Weights) -> None:
    del weights[LM_HEAD]


@pytest.mark.parametrize(
    ("tied", "head"),
    [(True, "absent"), (True, "same"), (True, "different"), (False, "present")],
)
def test_d16_tied_and_untied_embeddings(tmp_path: Path, tied: bool, head: str) -> None:
    save_model(llama_config(tie_word_embeddings=tied), tmp_path)
    before = load_file(tmp_path / "model.safetensors")
    assert (LM_HEAD in before) is not tied
    if head == "same":
        edit_weights(tmp_path, lambda weights: weights.update({LM_HEAD: weights[EMBEDDING].clone()}))
    if head == "different":
        edit_weights(tmp_path, lambda weights: weights.update({LM_HEAD: weights[EMBEDDING].flip(0)}))
    check_logits(tmp_path, token_ids(9))


def test_d16_an_untied_head_that_is_absent_is_refused_by_name(tmp_path: Path) -> None:
    save_model(llama_config(tie_word_embeddings=False), tmp_path)
    edit_weights(tmp_path, drop_head)
    with pytest.raises(ModelError, match=r"lacks 1 weights, such as lm_head\.weight"):
        load(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "shape", "no weights", "bad config", "unknown type"])
def test_a_damaged_checkpoint_is_one_clear_sentence(tmp_path: Path, damage: str) -> None:
    save_model(llama_config(), tmp_path)
    weights = tmp_path / "model.safetensors"
    match damage:
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-1000])
        case "shape":
            change_config(tmp_path, intermediate_size=80)
        case "no weights":
            weights.unlink()
        case "bad config":
            (tmp_path / "config.json").write_text("{")
        case "unknown type":
            change_config(tmp_path, model_type="unheard-of")
    with pytest.raises(ModelError, match=f"^cannot load the model {tmp_path}: .") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
