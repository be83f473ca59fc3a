"""In float32 a request's tokens depend on nothing but the request."""

from __future__ import annotations

import random
from typing import Any

import pytest
from headrace.engine import Engine, SamplingParams
from headrace.engine.hf_model import TransformersModel

from .runs import MOST_STEPS, Answer, collect, drain, greedy, run
from .tiny_models import VOCABULARY, tiny_engine

Jobs = dict[str, tuple[list[int], SamplingParams]]


def mixed_jobs(sampled: bool) -> Jobs:
    """Prompts of 1 to 60 tokens; with ``sampled``, each row has sampling settings of its own."""
    generator = random.Random(7)
    settings: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 0},
        {"temperature": 2, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    ]
    jobs: Jobs = {}
    for index in range(12):
        prompt = [generator.randrange(3, VOCABULARY) for _ in range(generator.choice([1, 3, 8, 20, 60]))]
        params = (
            SamplingParams(max_tokens=10 + index, seed=1000 + index, ignore_eos=True, **settings[index % 6])
            if sampled
            else greedy(10 + index)
        )
        jobs[f"job-{index}"] = (prompt, params)
    return jobs


def answers_of(engine: Engine, jobs: Jobs, order: list[str]) -> dict[str, list[int]]:
    for name in order:
        engine.add(name, *jobs[name])
    return {name: answer.token_ids for name, answer in drain(engine).items()}


def staggered(engine: Engine, jobs: Jobs) -> dict[str, list[int]]:
    """A new request every second step."""
    answers: dict[str, Answer] = {}
    names = list(jobs)
    for step in range(MOST_STEPS):
        if names and step % 2 == 0:
            name = names.pop(0)
            engine.add(name, *jobs[name])
        collect(engine.step(), answers)
        if not names and not engine.has_work:
            return {name: answer.token_ids for name, answer in answers.items()}
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_d1_layouts_of_the_batch_do_not_show(tiny_llama: TransformersModel, sampled: bool) -> None:
    jobs = mixed_jobs(sampled)
    alone = {name: answers_of(tiny_engine(tiny_llama), jobs, [name])[name] for name in jobs}
    assert len({tuple(ids) for ids in alone.values()}) == len(jobs), "jobs answer alike: a poor test"

    together = tiny_engine(tiny_llama)
    assert answers_of(together, jobs, list(jobs)) == alone
    assert together.stats.peak_running == len(jobs)

    shuffled = list(jobs)
    random.Random(3).shuffle(shuffled)
    # The same engine: blocks that others used are used again, in another order.
    assert answers_of(together, jobs, shuffled) == alone
    assert staggered(tiny_engine(tiny_llama), jobs) == alone
    chunked = tiny_engine(tiny_llama, max_num_batched_tokens=16)
    assert answers_of(chunked, jobs, list(jobs)) == alone
    assert chunked.stats.steps > together.stats.steps / 2 + 5
    crowded = tiny_engine(tiny_llama, max_num_seqs=3, block_size=16)
    assert answers_of(crowded, jobs, shuffled) == alone
    assert crowded.stats.peak_running == 3


def test_seeds_matter_and_repeat(tiny_llama: TransformersModel) -> None:
    def answer(seed: int) -> list[int]:
        params = SamplingParams(max_tokens=20, seed=seed, ignore_eos=True)
        return run(tiny_engine(tiny_llama), {"r": [5, 6, 7]}, params)["r"].token_ids

    assert answer(1) == answer(1)
    assert len({tuple(answer(seed)) for seed in range(5)}) == 5


def test_an_answer_goes_on_from_its_own_first_half(tiny_llama: TransformersModel) -> None:
    """What a worker does with a job that another one began: prompt and tokens so far become the prompt."""
    params = SamplingParams(max_tokens=20, seed=9, top_p=0.9, ignore_eos=True)
    prompt = [5, 6, 7, 8]
    whole = run(tiny_engine(tiny_llama), {"r": prompt}, params)["r"].token_ids
    for done in (1, 7, 19):
        rest = SamplingParams(max_tokens=20 - done, seed=9, top_p=0.9, ignore_eos=True)
        resumed = run(tiny_engine(tiny_llama), {"again": prompt + whole[:done]}, rest)["again"].token_ids
        assert whole[:done] + resumed == whole
