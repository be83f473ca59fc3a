"""An answer that another attempt began goes on as if it had never been interrupted."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from headrace.engine import Engine, EngineConfig, FinishReason, RequestError, RequestOutput, SamplingParams, Structure
from headrace.engine.hf_model import TransformersModel
from headrace.engine.invariants import check_scheduler
from headrace.engine.resumption import CANNOT_RESUME

from .runs import assert_idle
from .tiny_models import VOCABULARY, llama_config, load, save_model, tiny_engine

Outputs = list[RequestOutput]
PROMPT = list(range(20, 40))
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"const": "a long constant text"}, "size": {"type": "integer", "maximum": 9999}},
    "required": ["kind", "size"],
    "additionalProperties": False,
}


def steps(engine: Engine, most: int = 3_000) -> Outputs:
    """All outputs until nothing is left, or of so many steps."""
    outputs: Outputs = []
    for _ in range(most):
        if not engine.has_work:
            assert_idle(engine)
            break
        outputs += engine.step()
        check_scheduler(engine.scheduler)
    return outputs


def joined(outputs: Outputs) -> dict[int, tuple[list[int], str, FinishReason | None, Any]]:
    """Of each answer: its tokens, its text, why it ended, and the stop that ended it."""
    parts: dict[int, Outputs] = defaultdict(list)
    for output in outputs:
        parts[output.index].append(output)
    return {
        index: (
            [token for one in of_answer for token in one.token_ids],
            "".join(one.text for one in of_answer),
            of_answer[-1].finish_reason,
            of_answer[-1].stop_reason,
        )
        for index, of_answer in parts.items()
    }


def cut_in_two(engine: Engine, prompt: list[int], params: SamplingParams, num_outputs: int) -> Outputs:
    """The outputs of an attempt that was lost after so many of them, and of the one that went on."""
    engine.add("first", prompt, params)
    before = steps(engine)[:num_outputs]
    published = {index: tokens for index, (tokens, *_) in joined(before).items()}
    engine.add("second", prompt, params, published=published)
    after = steps(engine)
    assert [one.finished for one in after] == [False] * (len(after) - 1) + [True]
    return before + after


def assert_no_seam_shows(engine: Engine, prompt: list[int], params: SamplingParams) -> Outputs:
    """Cut an answer after a dozen of its outputs; returns the undisturbed ones."""
    engine.add("whole", prompt, params)
    whole = steps(engine)
    for num_outputs in range(1, len(whole) + 1, max(1, len(whole) // 12)):
        resumed = cut_in_two(engine, prompt, params, num_outputs)
        assert joined(resumed) == joined(whole), f"cut after {num_outputs} of {len(whole)} outputs"
    return whole


@pytest.fixture(scope="module")
def engine(tiny_llama: TransformersModel) -> Engine:
    """Over single bytes, so that most of what it says is halves of characters."""
    return tiny_engine(tiny_llama)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"seed": 3},
        {"seed": 4, "temperature": 1.5, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
        {"seed": 5, "presence_penalty": 1.5, "frequency_penalty": 0.7, "repetition_penalty": 1.4},
        {"temperature": 0, "repetition_penalty": 2.0, "logit_bias": {99: 5.0}, "bad_words": ("he", "a")},
        {"seed": 6, "min_tokens": 16, "stop_token_ids": tuple(range(50, 150))},
    ],
    ids=["greedy", "seeded", "filters", "penalties", "edits", "min-tokens"],
)
def test_tokens_and_text_over_every_seam(engine: Engine, settings: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True, **settings)
    whole = assert_no_seam_shows(engine, PROMPT, params)
    assert len(whole) >= 15
    assert any(one.token_ids and not one.text for one in whole), "no half of a character stood at a seam"


def test_stop_texts_over_the_seam(engine: Engine) -> None:
    """Cut inside the stop text too: what was held back of it must not come, and what was published not twice."""
    free = SamplingParams(max_tokens=40, seed=8, ignore_eos=True, logit_bias=dict.fromkeys(range(70, 96), 100.0))
    engine.add("free", PROMPT, free)
    text = joined(steps(engine))[0][1]
    stop = text[12:17]
    assert text.index(stop) == 12
    for include in (False, True):
        params = SamplingParams(
            max_tokens=40,
            seed=8,
            ignore_eos=True,
            logit_bias=free.logit_bias,
            stop=(stop, text[14:16] + "no"),
            include_stop_str_in_output=include,
        )
        whole = assert_no_seam_shows(engine, PROMPT, params)
        assert joined(whole)[0][1:] == (text[: 17 if include else 12], FinishReason.STOP, stop)
        assert sum(not one.text for one in whole) >= 4, "nothing was held back"


def test_several_answers_each_from_where_it_stood(engine: Engine) -> None:
    params = SamplingParams(max_tokens=12, n=3, seed=9, stop_token_ids=tuple(range(4, 40)))
    whole = assert_no_seam_shows(engine, PROMPT, params)
    ends = [one for one in whole if one.finish_reason is not None]
    assert ends[0] is not whole[-1] and len(ends) == 3, "no cut came after one answer's end and before another's"


def test_a_grammar_goes_on_inside_forced_tokens(demo_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    config = llama_config(vocab_size=len(demo_tokenizer), hidden_size=16, num_attention_heads=2)
    model = load(save_model(config, tmp_path_factory.mktemp("random")))
    engine = Engine(model, demo_tokenizer, EngineConfig(model="random", kv_cache_memory=16 << 20), "random")
    params = SamplingParams(seed=2, max_tokens=100, structure=Structure("json_schema", json.dumps(SCHEMA)))
    whole = assert_no_seam_shows(engine, PROMPT, params)
    assert json.loads(joined(whole)[0][1])["kind"] == "a long constant text"
    assert engine.stats.forced_tokens > 0


def test_log_probabilities_of_the_rest_and_of_the_prompt(engine: Engine) -> None:
    params = SamplingParams(max_tokens=10, seed=1, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    engine.add("whole", PROMPT, params)
    whole = steps(engine)
    resumed = cut_in_two(engine, PROMPT, params, 4)
    for one, other in zip(whole, resumed, strict=True):
        assert one.logprobs is not None and other.logprobs is not None
        assert [rank.token_id for rank in one.logprobs] == [rank.token_id for rank in other.logprobs]
        assert [rank.logprob for rank in one.logprobs] == pytest.approx(
            [rank.logprob for rank in other.logprobs], abs=1e-4
        )
    assert [one.prompt_logprobs is not None for one in resumed] == [True, *[False] * 3, True, *[False] * 5]
    assert whole[0].prompt_logprobs == resumed[4].prompt_logprobs


def test_resumed_answers_are_preempted_like_any_other(tiny_llama: TransformersModel) -> None:
    """More answers resume at once than memory holds, over both ways to pause."""
    generator = random.Random(1)
    roomy = tiny_engine(tiny_llama)
    jobs = {
        f"r{index}": ([generator.randrange(3, VOCABULARY) for _ in range(8)], SamplingParams(
            max_tokens=40, seed=index, ignore_eos=True)) for index in range(12)
    }  # fmt: skip
    expected: dict[str, Sequence[int]] = {}
    for name, (prompt, params) in jobs.items():
        roomy.add(name, prompt, params)
        expected[name] = joined(steps(roomy))[0][0]
    tight = tiny_engine(tiny_llama, kv_cache_memory=40 * tiny_llama.geometry.block_bytes(4, tiny_llama.dtype))
    for name, (prompt, params) in jobs.items():
        tight.add(name, prompt, params, published={0: expected[name][: generator.randrange(1, 40)]})
    tight.scheduler.estimate.ratio = 0.0
    rest: dict[str, list[int]] = defaultdict(list)
    for output in steps(tight):
        rest[output.request_id] += output.token_ids
        tight.scheduler.estimate.ratio = 0.0
    for name, tokens in rest.items():
        assert tokens == expected[name][-len(tokens) :], name
    assert sum(tight.scheduler.stats.preemptions.values()) > 0


def test_cached_tokens_are_the_prompts_alone(engine: Engine) -> None:
    params = SamplingParams(max_tokens=30, seed=33, ignore_eos=True)
    resumed = cut_in_two(engine, PROMPT, params, 25)
    assert resumed[-1].cached_tokens == len(PROMPT), "the cache held prompt and answer; only the prompt is counted"


@pytest.mark.parametrize(
    ("published", "settings"),
    [
        ({1: [5]}, {}),
        ({0: [VOCABULARY]}, {}),
        ({0: [5] * 11}, {}),
        ({0: [60, 61]}, {"stop_token_ids": (60,)}),
        ({0: [60, 61]}, {"structure": Structure("regex", "never")}),
        ({0: [60]}, {"stop_token_ids": (60,), "prompt_logprobs": 0}),
    ],
    ids=["no-such-answer", "no-such-token", "too-many", "past-its-end", "against-its-grammar", "unscored-prompt"],
)
def test_tokens_that_lead_nowhere_are_refused(
    engine: Engine, published: dict[int, list[int]], settings: dict[str, Any]
) -> None:
    params = SamplingParams(max_tokens=10, ignore_eos=True, **settings)
    with pytest.raises(RequestError) as caught:
        engine.add("r", PROMPT, params, published=published)
    assert caught.value.code == CANNOT_RESUME
    assert_idle(engine)
    engine.add("r", PROMPT, params)  # from the start it goes
    assert joined(steps(engine))[0][0]
