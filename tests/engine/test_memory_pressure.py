"""Nothing that the scheduler does changes a token: pools, pauses, prefix cache, chunks and policies in float32."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from headrace.engine import Engine, FinishReason, RequestOptions, RequestOutput, SamplingParams
from headrace.engine.hf_model import TransformersModel
from headrace.engine.invariants import check_scheduler
from headrace.engine.preemption import CostModel, PreemptionMethod

from .runs import Answer, assert_idle, collect, requests_of
from .schedulers import RECOMPUTE_IS_CHEAP, SWAP_IS_CHEAP
from .tiny_models import tiny_engine

BLOCK_SIZE = 4


@dataclass(frozen=True)
class Job:
    """A prompt and how to answer it."""

    prompt: list[int]
    params: SamplingParams
    options: RequestOptions


def jobs() -> list[Job]:
    """Greedy and seeded requests of many lengths, half of which begin alike, of two tenants."""
    generator = random.Random(3)
    beginning = [generator.randrange(3, 300) for _ in range(14)]
    made = []
    for index in range(12):
        own = [generator.randrange(3, 300) for _ in range(generator.choice([1, 2, 5, 11]))]
        params = SamplingParams(
            max_tokens=generator.choice([13, 22, 30]),
            temperature=0.0 if index % 3 else 1.0,
            seed=index,
            ignore_eos=True,
        )
        options = RequestOptions(priority=index % 10, tenant="ab"[index % 2])
        made.append(Job(beginning + own if index % 4 < 2 else own, params, options))
    return made


def engine_of(model: TransformersModel, blocks: int, cost: CostModel = SWAP_IS_CHEAP, **settings: Any) -> Engine:
    memory = blocks * model.geometry.block_bytes(BLOCK_SIZE, model.dtype)
    engine = tiny_engine(model, kv_cache_memory=memory, debug=True, **settings)
    engine.scheduler.cost = cost
    return engine


def answers_of(engine: Engine, *, optimistic: bool = False) -> dict[str, Answer]:
    """Answer all jobs, some of which come late; a prompt's every block is poisoned once it is free."""
    answers: dict[str, Answer] = {}
    todo = list(enumerate(jobs()))
    while todo or engine.has_work:
        for index, job in todo[:4]:
            engine.add(str(index), job.prompt, job.params, job.options)
        todo = todo[4:]
        for _ in range(3):
            if optimistic:
                engine.scheduler.estimate.ratio = 0.0  # admit everybody, so that memory runs out again and again
            collect(engine.step(), answers)
            check_scheduler(engine.scheduler)
    assert_idle(engine)
    return answers


@pytest.fixture(scope="module")
def undisturbed(tiny_llama: TransformersModel) -> dict[str, list[int]]:
    """Each job's tokens, answered alone by an engine without prefix cache."""
    engine = engine_of(tiny_llama, 200, prefix_cache=False)
    answers: dict[str, Answer] = {}
    for index, job in enumerate(jobs()):
        engine.add(str(index), job.prompt, job.params, job.options)
        while engine.has_work:
            collect(engine.step(), answers)
    assert sum(engine.scheduler.stats.preemptions.values()) == 0
    return {name: answer.token_ids for name, answer in answers.items()}


def preemptions(engine: Engine, method: PreemptionMethod) -> int:
    return engine.scheduler.stats.preemptions[method]


@pytest.mark.parametrize("budget", [16, 19, 64])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_d2_swapping_changes_no_token(
    tiny_llama: TransformersModel, undisturbed: dict[str, list[int]], budget: int, prefix_cache: bool
) -> None:
    engine = engine_of(tiny_llama, 16, max_num_batched_tokens=budget, prefix_cache=prefix_cache)
    answers = answers_of(engine, optimistic=True)
    assert {name: answer.token_ids for name, answer in answers.items()} == undisturbed
    assert preemptions(engine, PreemptionMethod.SWAP) >= 12, "the pool was not tight enough"
    assert engine.scheduler.stats.blocks_swapped_in > 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_d2_computing_again_changes_no_token(
    tiny_llama: TransformersModel, undisturbed: dict[str, list[int]], prefix_cache: bool
) -> None:
    engine = engine_of(tiny_llama, 16, RECOMPUTE_IS_CHEAP, swap_memory=0, prefix_cache=prefix_cache)
    answers = answers_of(engine, optimistic=True)
    assert {name: answer.token_ids for name, answer in answers.items()} == undisturbed
    assert preemptions(engine, PreemptionMethod.RECOMPUTE) >= 12, "the pool was not tight enough"


def test_d2_every_request_that_can_be_is_swapped_twice(
    tiny_llama: TransformersModel, undisturbed: dict[str, list[int]]
) -> None:
    """Pauses are forced, one after the other, whatever the memory."""
    engine = engine_of(tiny_llama, 200)
    answers: dict[str, Answer] = {}
    for index, job in enumerate(jobs()):
        engine.add(str(index), job.prompt, job.params, job.options)
    requests = dict(requests_of(engine))
    scheduler = engine.scheduler
    while engine.has_work:
        for request in list(scheduler.running):
            drawn = len(request.output_token_ids)
            if request.num_preemptions < (drawn >= 2) + (drawn >= 7):
                scheduler._preempt(scheduler._self_victim(request))
        collect(engine.step(), answers)
        check_scheduler(scheduler)
    assert {name: answer.token_ids for name, answer in answers.items()} == undisturbed
    assert min(request.num_preemptions for request in requests.values()) >= 2
    assert preemptions(engine, PreemptionMethod.SWAP) >= 24


@pytest.mark.parametrize("policy", ["fcfs", "priority", "srpt", "fair", "prefix", "fair,priority,srpt,prefix"])
def test_policies_change_no_token(
    tiny_llama: TransformersModel, undisturbed: dict[str, list[int]], policy: str
) -> None:
    engine = engine_of(tiny_llama, 20, policy=policy, max_num_seqs=5, max_num_batched_tokens=11)
    answers = answers_of(engine)
    assert {name: answer.token_ids for name, answer in answers.items()} == undisturbed


def test_d3_prefix_hits_change_no_token_and_are_reported(
    tiny_llama: TransformersModel, undisturbed: dict[str, list[int]]
) -> None:
    engine = engine_of(tiny_llama, 200)
    first, second = answers_of(engine), answers_of(engine)
    for answers in (first, second):
        assert {name: answer.token_ids for name, answer in answers.items()} == undisturbed
    hits = {name: last_of(answer).cached_tokens for name, answer in second.items()}
    for index, job in enumerate(jobs()):
        assert hits[str(index)] == (len(job.prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
    stats = engine.scheduler.stats
    assert stats.prefix_cache_hits >= sum(hits.values()) > 0
    assert stats.prefix_cache_queries == 2 * sum(len(job.prompt) for job in jobs())


def last_of(answer: Answer) -> RequestOutput:
    assert answer.last is not None
    return answer.last


def test_d3_salts_and_tenants_never_share(tiny_llama: TransformersModel) -> None:
    engine, prompt = engine_of(tiny_llama, 200), list(range(3, 30))
    params = SamplingParams(max_tokens=1, temperature=0)
    cached = []
    for index, options in enumerate(
        [
            RequestOptions(),
            RequestOptions(tenant="a"),
            RequestOptions(cache_salt="a"),
            RequestOptions(prefix_cache=False),
            RequestOptions(tenant="a", cache_salt="a"),
            RequestOptions(tenant="a"),
            RequestOptions(),
        ]
    ):
        engine.add(str(index), prompt, params, options)
        (output,) = engine.step()
        cached.append(output.cached_tokens)
    assert cached == [0, 0, 0, 0, 0, 24, 24]


def test_d4_a_request_that_outgrows_the_pool_ends_and_the_others_go_on(tiny_llama: TransformersModel) -> None:
    engine = engine_of(tiny_llama, 8)
    params = SamplingParams(max_tokens=1000, temperature=0, ignore_eos=True)
    engine.add("big", [5] * 20, params)
    for index in range(3):
        engine.add(f"small {index}", [6 + index], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    answers: dict[str, Answer] = {}
    while engine.has_work:
        collect(engine.step(), answers)
        check_scheduler(engine.scheduler)
    assert answers["big"].finish_reason is FinishReason.LENGTH
    assert len(answers["big"].token_ids) == 8 * BLOCK_SIZE + 1 - 20
    assert [len(answers[f"small {index}"].token_ids) for index in range(3)] == [4, 4, 4]


def test_b7_paused_requests_can_be_taken_back(tiny_llama: TransformersModel) -> None:
    engine = engine_of(tiny_llama, 16)
    answers: dict[str, Answer] = {}
    for index, job in enumerate(jobs()):
        engine.add(str(index), job.prompt, job.params, job.options)
    taken_back = 0
    while engine.has_work:
        engine.scheduler.estimate.ratio = 0.0
        collect(engine.step(), answers)
        for request in list(engine.scheduler.preempted)[:1]:
            assert engine.abort(request.request_id)
            assert not engine.abort(request.request_id)
            taken_back += 1
        check_scheduler(engine.scheduler)
    assert taken_back >= 3
    assert_idle(engine)
    assert engine.swap.pool.num_free == engine.swap.pool.num_blocks
