"""Models that several of the engine's tests share; loading them once keeps the tests fast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headrace.engine.loader import DEMO_MODEL, resolve_model
from headrace.engine.model_protocol import Model
from transformers import AutoTokenizer

from .tiny_models import llama_config, load, save_model


@pytest.fixture(scope="session")
def demo_directory() -> Path:
    """The demo model, dequantised."""
    return Path(resolve_model(DEMO_MODEL).path)


@pytest.fixture(scope="session")
def demo_model(demo_directory: Path) -> Model:
    """The demo model in float32."""
    return load(demo_directory)


@pytest.fixture(scope="session")
def demo_tokenizer(demo_directory: Path) -> Any:
    """The demo model's tokenizer."""
    return AutoTokenizer.from_pretrained(demo_directory)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny random Llama in float32."""
    return load(save_model(llama_config(), tmp_path_factory.mktemp("tiny-llama")))


@pytest.fixture(scope="session")
def greedy_sample() -> list[dict[str, Any]]:
    """Prompts, and the demo model's greedy answers by transformers' own ``generate`` in float32."""
    path = Path(__file__).parent.parent / "data" / "greedy_fp32_sample.json"
    sample: list[dict[str, Any]] = json.loads(path.read_text())
    return sample
