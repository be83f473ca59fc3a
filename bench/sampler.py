"""What sampling a batch costs: greedy rows, plain top-p rows, and rows with every option on.

python -m bench.sampler
python -m bench.sampler --rows 64 --rounds 20 --json

The engine's own sampler draws a token for every row of made-up logits, and every request takes its token, as after a
step. Peaked logits fall off as those of a language model do, so that a nucleus is some dozens of tokens; flat ones are
the worst case, where it is most of the vocabulary. The kinds take turns, so that a slow moment meets all of them.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import torch
from headrace.engine import SamplingParams
from headrace.engine.request import Request
from headrace.engine.sampler import Sampler
from headrace.engine.token_rules import build_token_rules

from . import report

END_TOKEN = 2
PROMPT_TOKENS = 200
OUTPUT_TOKENS = 100
WARM_UP_ROUNDS = 2


def greedy(_row: int, _vocabulary: int) -> SamplingParams:
    """The likeliest token."""
    return SamplingParams(temperature=0, ignore_eos=True)


def top_p(row: int, _vocabulary: int) -> SamplingParams:
    """What most requests ask for."""
    return SamplingParams(temperature=0.8, top_p=0.9, seed=row, ignore_eos=True)


def everything(row: int, vocabulary: int) -> SamplingParams:
    """Every option that sampling knows, with values of the row's own."""
    source = random.Random(row)
    return SamplingParams(
        temperature=0.8,
        top_p=0.9,
        top_k=50,
        min_p=0.01,
        seed=row,
        ignore_eos=True,
        min_tokens=1 << 20,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        logit_bias={source.randrange(vocabulary): source.uniform(-5, 5) for _ in range(20)},
        bad_words=tuple(f"bad {index}" for index in range(8)),
        allowed_token_ids=tuple(source.sample(range(vocabulary), vocabulary * 3 // 4)),
        logprobs=5,
    )


def without_logprobs(row: int, vocabulary: int) -> SamplingParams:
    """The same, with nothing to report."""
    return replace(everything(row, vocabulary), logprobs=None)


KINDS: dict[str, Callable[[int, int], SamplingParams]] = {
    "greedy": greedy,
    "top_p": top_p,
    "everything": everything,
    "without_logprobs": without_logprobs,
}


def peaked(rows: int, vocabulary: int) -> torch.Tensor:
    """Logits that fall with the rank, differently ordered in each row; float32 ``[rows, vocabulary]``."""
    generator = torch.Generator().manual_seed(0)
    by_rank = -1.5 * torch.arange(1, vocabulary + 1, dtype=torch.float32).log()
    order = torch.rand(rows, vocabulary, generator=generator).argsort(dim=-1)
    return by_rank[order] + 0.1 * torch.randn(rows, vocabulary, generator=generator)


def flat(rows: int, vocabulary: int) -> torch.Tensor:
    """Logits of tokens that are all about as likely; float32 ``[rows, vocabulary]``."""
    return 0.01 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))


LOGITS = {"peaked": peaked, "flat": flat}


def make_requests(kind: Callable[[int, int], SamplingParams], rows: int, vocabulary: int) -> tuple[Request, ...]:
    """Requests in the middle of their answers."""
    requests = []
    for row in range(rows):
        source = random.Random(row)
        prompt = [source.randrange(vocabulary) for _ in range(PROMPT_TOKENS)]
        params = kind(row, vocabulary)
        rules = build_token_rules(
            params,
            prompt,
            {END_TOKEN},
            vocab_size=vocabulary,
            spellings=lambda word: [spelling(word, vocabulary)],
            structure=None,
        )
        request = Request(str(row), prompt, params, 1 << 20, frozenset({END_TOKEN}), rules=rules)
        for _ in range(OUTPUT_TOKENS):
            request.append_token(source.randrange(vocabulary))
        requests.append(request)
    return tuple(requests)


def spelling(word: str, vocabulary: int) -> tuple[int, ...]:
    """A made-up word's tokens, one to three."""
    source = random.Random(word)
    return tuple(source.choices(range(vocabulary), k=source.randint(1, 3)))


def sample_once(sampler: Sampler, logits: torch.Tensor, requests: tuple[Request, ...]) -> float:
    """Seconds that drawing a token for each request takes, with what the requests note about it."""
    positions = torch.tensor([request.num_tokens for request in requests])
    own = logits.clone()  # the sampler writes on what the model computed
    start = time.perf_counter()
    for request, draw in zip(requests, sampler.sample(own, requests, positions), strict=True):
        assert draw.token_id is not None
        request.append_token(draw.token_id)
    return time.perf_counter() - start


def measure(logits: torch.Tensor, rounds: int) -> report.Record:
    """Median milliseconds of each kind, and what the options cost over plain top-p."""
    rows, vocabulary = logits.shape
    requests = {name: make_requests(kind, rows, vocabulary) for name, kind in KINDS.items()}
    samplers = {name: Sampler() for name in KINDS}
    seconds: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(rounds + WARM_UP_ROUNDS):
        for name in KINDS:
            seconds[name].append(sample_once(samplers[name], logits, requests[name]))
    middle = {name: 1e3 * median(values[WARM_UP_ROUNDS:]) for name, values in seconds.items()}
    return {
        **{f"{name}_ms": round(value, 3) for name, value in middle.items()},
        "everything_over_top_p": round(middle["everything"] / middle["top_p"], 3),
        "without_logprobs_over_top_p": round(middle["without_logprobs"] / middle["top_p"], 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.sampler", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=256, help="default: %(default)s")
    parser.add_argument("--vocabulary", type=int, default=49_152, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    record: report.Record = {
        "benchmark": "sampler",
        **{name: measure(make(options.rows, options.vocabulary), options.rounds) for name, make in LOGITS.items()},
        "settings": {"rows": options.rows, "vocabulary": options.vocabulary, "rounds": options.rounds},
        "versions": report.versions(["headrace", "torch", "numpy"]),
        "machine": report.machine(),
    }
    report.print_record(record, as_json=options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
