"""Log-probabilities of answers and prompts against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from headrace.engine import Engine, RequestOutput, SamplingParams, TokenLogprob
from headrace.engine.model_protocol import Model

from .runs import assert_idle
from .tiny_models import llama_config, load, save_model, tiny_engine, transformers_logits

PROMPT = [17, 250, 3, 99, 4, 4, 120, 61, 200, 8, 31]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(llama_config(), tmp_path_factory.mktemp("logprobs"))


@pytest.fixture(scope="module")
def model(directory: Path) -> Model:
    return load(directory)


def outputs_of(engine: Engine) -> list[RequestOutput]:
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert_idle(engine)
    return outputs


def check(found: TokenLogprob, token: int, logprobs: torch.Tensor, count: int) -> None:
    assert found.token_id == token
    assert found.logprob == pytest.approx(float(logprobs[token]), abs=1e-3)
    best = logprobs.topk(count) if count else None
    if best is not None:
        assert [one.token_id for one in found.top] == best.indices.tolist()
        assert [one.logprob for one in found.top] == pytest.approx(best.values.tolist(), abs=1e-3)
    else:
        assert found.top == ()


@pytest.mark.parametrize("count", [0, 3])
def test_of_the_answer(model: Model, directory: Path, count: int) -> None:
    engine = tiny_engine(model)
    engine.add("r", PROMPT, SamplingParams(max_tokens=6, seed=2, logprobs=count, ignore_eos=True))
    outputs = outputs_of(engine)
    tokens = [token for output in outputs for token in output.token_ids]
    found = [one for output in outputs for one in output.logprobs or ()]
    exact = transformers_logits(directory, [*PROMPT, *tokens]).log_softmax(-1)
    assert len(found) == 6
    for index, one in enumerate(found):
        check(one, tokens[index], exact[len(PROMPT) - 1 + index], count)
    assert all(output.prompt_logprobs is None for output in outputs)


@pytest.mark.parametrize("budget", [1024, 4, 3, 16])
@pytest.mark.parametrize("n", [1, 2])
def test_d14_of_the_prompt_whatever_its_chunks(model: Model, directory: Path, budget: int, n: int) -> None:
    engine = tiny_engine(model, max_num_batched_tokens=budget, max_num_seqs=3)
    engine.add("other", [9] * 7, SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    for name in ("r", "again"):  # the second would find the first in the prefix cache
        engine.add(name, PROMPT, SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=2, n=n, ignore_eos=True))
        outputs = [output for output in outputs_of(engine) if output.request_id == name]
        scored = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
        assert len(scored) == 1, "once for all answers"
        exact = transformers_logits(directory, PROMPT).log_softmax(-1)
        assert len(scored[0]) == len(PROMPT) - 1
        for index, one in enumerate(scored[0]):
            check(one, PROMPT[index + 1], exact[index], 2)


def test_a_prompt_of_one_token_has_none(model: Model) -> None:
    engine = tiny_engine(model)
    engine.add("r", [5], SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, ignore_eos=True))
    [output] = outputs_of(engine)
    assert output.prompt_logprobs == ()


def test_texts_and_bytes_of_tokens(model: Model) -> None:
    engine = tiny_engine(model)
    engine.add("r", [5, 6], SamplingParams(max_tokens=3, seed=1, logprobs=20, ignore_eos=True))
    for output in outputs_of(engine):
        for one in output.logprobs or ():
            for token in (one, *one.top):
                assert token.text == token.bytes.decode(errors="replace")
