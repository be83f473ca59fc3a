"""Sampling: frequencies against the exact distribution, and rules that stay with their own request."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from headrace.engine import RequestError, SamplingParams
from headrace.engine.sampler import NONE_ALLOWED, NOT_FINITE, Sampler
from headrace.kernels import reference

from .runs import greedy
from .sampling import draw, make_request, sample

VOCABULARY = 300
SMALL = 24


def random_logits(rows: int, vocabulary: int = VOCABULARY, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def quantile_of_chi_square(degrees: int) -> float:
    """Wilson-Hilferty's approximation of the 99.9% quantile."""
    return degrees * (1 - 2 / (9 * degrees) + 3.09 * math.sqrt(2 / (9 * degrees))) ** 3


def edited(logits: torch.Tensor, params: SamplingParams, prompt: list[int], output: list[int]) -> torch.Tensor:
    """The logits after a request's rules, entry by entry, as the documentation says."""
    values = logits.tolist()
    counts = Counter(output)
    for token in range(len(values)):
        values[token] += params.logit_bias.get(token, 0.0)
        if token in {*prompt, *output}:
            rate = params.repetition_penalty
            values[token] = values[token] / rate if values[token] > 0 else values[token] * rate
        if counts[token]:
            values[token] -= params.frequency_penalty * counts[token] + params.presence_penalty
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            values[token] = -math.inf
    return torch.tensor(values)


FILTERS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.08},
    {"logit_bias": {3: 4.0, 5: -100.0}},
    {"allowed_token_ids": (1, 4, 6, 9, 20)},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8},
    {"repetition_penalty": 2.5},
    {
        "temperature": 1.2,
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": -0.3,
        "logit_bias": {2: 3.0},
    },
]


@pytest.mark.parametrize("settings", FILTERS, ids="+".join)
def test_sampled_frequencies_follow_the_exact_distribution(settings: dict[str, Any]) -> None:
    """A chi-squared test at 0.1%, of draws by requests that differ in their seed alone."""
    draws, prompt, output = 6_000, [1, 2, 2], [3, 4, 4, 4]
    logits = random_logits(1, SMALL)[0]
    requests = []
    for seed in range(draws):
        request = make_request(SamplingParams(seed=seed, **settings), prompt, vocabulary=SMALL)
        for token in output:
            request.append_token(token)
        requests.append(request)
    params = requests[0].params
    expected = reference.kept_tokens(
        edited(logits, params, prompt, output), params.temperature, params.top_k, params.top_p, params.min_p
    )
    counts = Counter(sample(logits.expand(draws, -1), requests))
    assert set(counts) <= set(expected), "a token was drawn that is not kept"
    chi_square = sum((counts[token] - draws * p) ** 2 / (draws * p) for token, p in expected.items() if p > 0)
    assert len(expected) > 3
    assert chi_square < quantile_of_chi_square(len(expected) - 1)


RULES: dict[str, Any] = {
    "logit_bias": {7: 100.0},
    "min_tokens": 4,
    "presence_penalty": 2.0,
    "frequency_penalty": 2.0,
    "repetition_penalty": 5.0,
    "bad_words": ("bad",),
    "allowed_token_ids": tuple(range(50)),
}


@pytest.mark.parametrize("order", ["AB", "BA", "ABC", "CAB", "BCA"])
def test_d6_rules_stay_with_their_request(order: str) -> None:
    """A has every rule, B and C none; A leaves, B takes its row, C joins: B's tokens are those of B alone."""
    sampler, steps = Sampler(), 12
    tables = {name: random_logits(steps, seed=index) for index, name in enumerate("ABC")}
    alone = {name: [int(tables[name][step].argmax()) for step in range(steps)] for name in "BC"}

    def made(name: str) -> Any:
        settings = RULES if name == "A" else {}
        params = SamplingParams(temperature=0, **settings)
        return make_request(params, ends=(2,), spellings={"bad": (9, 8)}, max_tokens=99)

    running = {name: made(name) for name in order}
    for step in range(steps):
        if step == 5:
            del running["A"]
        if step == 7 and "C" not in running:
            running = {"C": made("C"), **running}
        rows = torch.stack([tables[name][step] for name in running])
        draws = draw(rows, list(running.values()), sampler)
        for (name, request), one in zip(list(running.items()), draws, strict=True):
            assert one.token_id is not None
            request.append_token(one.token_id)
            if name != "A":
                assert one.token_id == alone[name][step], f"{name} in step {step}"
            elif step == 0:
                assert one.token_id == 7, "A's own rules are in force"


def test_d6_a_tokens_count_is_the_output_alone() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 5], logits[0, 6] = 1.0, 0.9
    for prompt in ([5], [5, 5, 5]):
        request = make_request(SamplingParams(temperature=0, presence_penalty=2, frequency_penalty=2), prompt)
        assert sample(logits, [request]) == [5], "the prompt does not count"
        request.append_token(5)
        assert sample(logits, [request]) == [6], "the output does"
    assert sample(logits, [make_request(SamplingParams(temperature=0, repetition_penalty=2), [5])]) == [6]


def test_ends_are_held_off_until_min_tokens() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 2], logits[0, 8] = 9.0, 5.0
    request = make_request(SamplingParams(temperature=0, min_tokens=2), ends=(2,))
    drawn = []
    while request.finish_reason is None:
        [token] = sample(logits, [request])
        assert token is not None
        drawn.append(token)
        request.append_token(token)
    assert drawn == [8, 8, 2]


def test_a_bad_word_of_several_tokens_is_never_completed() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 10], logits[0, 11], logits[0, 12] = 3.0, 2.0, 1.0
    params = SamplingParams(temperature=0, bad_words=("ab", "c"))
    request = make_request(params, spellings={"ab": (10, 10), "c": (11,)})
    drawn = []
    for _ in range(4):
        [token] = sample(logits, [request])
        assert token is not None
        drawn.append(token)
        request.append_token(token)
    assert drawn == [10, 12, 10, 12]


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids"])
@pytest.mark.parametrize("token", [-1, VOCABULARY, 10**9])
def test_d7_ids_that_the_model_lacks_are_named(name: str, token: int) -> None:
    value: Any = {token: 1.0} if name == "logit_bias" else (5, token)
    with pytest.raises(RequestError, match=rf"^{name} holds the token id {token}; this model's ids are 0 to 299$"):
        make_request(SamplingParams(**{name: value}))


def test_rows_that_are_not_finite_or_have_nothing_left_end_alone() -> None:
    logits = random_logits(5)
    logits[1, 3] = math.nan
    logits[2] = -math.inf
    plain = make_request(SamplingParams(seed=4))
    nothing = make_request(SamplingParams(allowed_token_ids=(9,), bad_words=("x",)), spellings={"x": (9,)})
    requests = [plain, plain, make_request(greedy()), nothing, make_request(greedy())]
    draws = draw(logits, requests)
    assert [one.error for one in draws] == [None, NOT_FINITE, NOT_FINITE, NONE_ALLOWED, None]
    assert draws[0] == draw(logits[:1], [plain])[0]
    assert draws[4].token_id == int(logits[4].argmax())


def test_samples_of_one_seed_are_independent() -> None:
    logits = torch.zeros(40, VOCABULARY)
    requests = [make_request(SamplingParams(seed=1), sample_index=index) for index in range(40)]
    assert len(set(sample(logits, requests))) > 30


def test_a_row_after_a_broken_one_keeps_its_own_settings() -> None:
    logits = random_logits(3)
    logits[0, 3] = math.nan
    requests = [make_request(SamplingParams(seed=seed, temperature=0.2 * seed)) for seed in (1, 6, 9)]
    draws = draw(logits, requests)
    assert draws[0].error == NOT_FINITE
    for row in (1, 2):
        assert draws[row] == draw(logits[row : row + 1], requests[row : row + 1])[0]
    other = [make_request(SamplingParams(seed=seed)) for seed in range(40)]
    tokens = sample(torch.cat([logits[:1], torch.zeros(39, VOCABULARY)]), other)
    assert tokens[1:] == [sample(torch.zeros(1, VOCABULARY), [one])[0] for one in other[1:]]


def test_penalties_of_unlike_rows_are_their_own() -> None:
    logits = torch.zeros(3, VOCABULARY)
    logits[:, 5], logits[:, 6] = 1.0, 0.5
    settings: list[dict[str, Any]] = [{"presence_penalty": 0.1}, {"presence_penalty": 1.0}, {"frequency_penalty": 0.3}]
    requests = [make_request(SamplingParams(temperature=0, **one)) for one in settings]
    drawn = []
    for _ in range(3):
        tokens = sample(logits, requests)
        drawn.append(tokens)
        for request, token in zip(requests, tokens, strict=True):
            assert token is not None
            request.append_token(token)
    assert drawn[:2] == [[5, 5, 5], [5, 6, 5]]
    assert drawn[2][0] == 5


def test_a_bad_word_is_known_by_its_beginning() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 12], logits[0, 11] = 3.0, 2.0
    request = make_request(SamplingParams(temperature=0, bad_words=("abc",)), spellings={"abc": (10, 11, 12)})
    for token in (10, 11):
        request.append_token(token)
    assert sample(logits, [request]) == [11]
    request.append_token(12)
    assert sample(logits, [request]) == [12]


def test_every_place_of_an_answer_has_its_own_noise() -> None:
    requests = []
    for length in range(40):
        requests.append(make_request(SamplingParams(seed=1)))
        for _ in range(length):
            requests[-1].append_token(3)
    assert len(set(sample(torch.zeros(40, VOCABULARY), requests))) > 30


def test_every_bit_of_a_seed_counts() -> None:
    seeds = [5, *(5 + (1 << bit) for bit in range(3, 64))]
    requests = [make_request(SamplingParams(seed=seed)) for seed in seeds]
    assert len(set(sample(torch.zeros(1, 100_000).expand(len(seeds), -1), requests))) == len(seeds)


def test_greedy_rows_have_no_noise_even_among_equals() -> None:
    requests = [make_request(SamplingParams(temperature=0, seed=seed)) for seed in range(20)]
    assert len(set(sample(torch.zeros(20, VOCABULARY), requests))) == 1


def test_log_probabilities_are_the_models_own() -> None:
    logits = random_logits(3)
    params = SamplingParams(temperature=0.5, logit_bias={7: 100.0}, logprobs=2, seed=1)
    draws = draw(logits, [make_request(greedy()), make_request(params), make_request(SamplingParams(logprobs=0))])
    exact = logits.log_softmax(-1)
    assert draws[0].logprobs is None
    ranked = draws[1].logprobs
    assert ranked is not None
    assert ranked.token_id == draws[1].token_id == 7
    assert ranked.logprob == pytest.approx(float(exact[1, 7]), abs=1e-5)
    assert [token for token, _ in ranked.likeliest] == logits[1].topk(2).indices.tolist()
    assert draws[2].logprobs is not None
    assert draws[2].logprobs.likeliest == ()
