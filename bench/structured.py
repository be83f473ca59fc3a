"""What rows that follow a JSON schema cost the plain rows beside them.

python -m bench.structured
python -m bench.structured --rows 4 --rounds 3 --json

Two engines with the same model step by turns. Half of the rows of each are plain sampled ones, whose time between
tokens is measured. The other half are plain as well in one engine, and follow a schema in the other, where tokens that
the schema forces cost no step of their own but are computed with the next one. All rows begin with the same prompts,
and each round begins anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from statistics import mean, median
from typing import NamedTuple

import numpy as np
import torch
from headrace.engine import Engine, EngineConfig, EngineError, SamplingParams, Structure
from headrace.engine.config import DTYPES
from headrace.kernels import apply_token_bitmask, bitmask_words

from . import report

PROMPT = "Some people of a small town by the sea, as a list in JSON with their names, trades and a few words on each:\n"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "trade": {"enum": ["baker", "fisher", "teacher", "smith"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "about": {"type": "string", "minLength": 40, "maxLength": 200},
    },
    "required": ["name", "trade", "age", "about"],
    "additionalProperties": False,
}
PEOPLE = Structure("json_schema", json.dumps({"type": "array", "items": PERSON, "minItems": 100}))
"""Longer than any round, so that no row ends in one."""
MOST_TOKENS = 1000
WARM_UP_ROUNDS = 1

Answers = dict[str, list[tuple[int, ...]]]
"""The tokens that each row got, step by step."""


def params(seed: int, structure: Structure | None = None) -> SamplingParams:
    """Settings of one row, plain or with a schema."""
    return SamplingParams(
        max_tokens=MOST_TOKENS, temperature=0.8, top_p=0.95, seed=seed, ignore_eos=True, structure=structure
    )


def take_step(engine: Engine, rows: int, answers: Answers) -> float:
    """Seconds of a step that gives every row a token; the tokens are noted."""
    start = time.perf_counter()
    outputs = engine.step()
    seconds = time.perf_counter() - start
    assert len(outputs) == 2 * rows
    for output in outputs:
        assert output.finish_reason is None, "a row that ends would leave the others a lighter step"
        answers.setdefault(output.request_id, []).append(output.token_ids)
    return seconds


def begin(engine: Engine, rows: int, structure: Structure | None) -> Answers:
    """Add the plain rows and as many neighbours, and compute their prompts."""
    prompt = engine.encoder.encode_text(PROMPT)
    for row in range(rows):
        engine.add(f"plain {row}", prompt, params(row))
        engine.add(f"neighbour {row}", prompt, params(rows + row, structure))
    answers: Answers = {}
    take_step(engine, rows, answers)
    return answers


def end(engine: Engine, rows: int) -> None:
    """Drop all rows."""
    for row in range(rows):
        engine.abort(f"plain {row}")
        engine.abort(f"neighbour {row}")


class Round(NamedTuple):
    """Seconds of each step of the two engines, and what the structured one answered."""

    plain: list[float]
    structured: list[float]
    answers: Answers


def run_round(plain: Engine, structured: Engine, rows: int, steps: int) -> Round:
    """Step both engines by turns, each first as often as the other."""
    one = Round([], [], begin(structured, rows, PEOPLE))
    begin(plain, rows, None)
    for step in range(steps):
        if step % 2:
            one.structured.append(take_step(structured, rows, one.answers))
        one.plain.append(take_step(plain, rows, {}))
        if not step % 2:
            one.structured.append(take_step(structured, rows, one.answers))
    end(plain, rows)
    end(structured, rows)
    return one


def grammar_seconds(engine: Engine, answers: Answers) -> float:
    """Seconds a step that masks and grammars take, found by following a round's answers once more."""
    followed = [steps for name, steps in answers.items() if name.startswith("neighbour")]
    states = [engine.structures.start(PEOPLE) for _ in followed]
    logits, rows = torch.zeros(2 * len(followed), engine.structures.vocab_size), torch.arange(0, 2 * len(followed), 2)
    start = time.perf_counter()
    for drawn in zip(*followed, strict=True):
        masks = np.empty((len(followed), bitmask_words(logits.shape[-1])), np.int32)
        for state, mask in zip(states, masks, strict=True):
            state.fill_bitmask(mask)
        apply_token_bitmask(logits, rows, torch.from_numpy(masks))
        for state, token_ids in zip(states, drawn, strict=True):
            for token_id in token_ids:
                state.accept(token_id)
            state.forced_tokens()
    return (time.perf_counter() - start) / len(followed[0])


def measure(plain: Engine, structured: Engine, rows: int, steps: int, rounds: int) -> report.Record:
    """Medians over rounds."""
    for engine in (plain, structured):
        engine.structures.start(PEOPLE)
    runs = [run_round(plain, structured, rows, steps) for _ in range(rounds + WARM_UP_ROUNDS)][WARM_UP_ROUNDS:]
    without, beside = (median(mean(times) for times in part) for part in zip(*(run[:2] for run in runs), strict=True))
    grammar = median(grammar_seconds(structured, run.answers) for run in runs)
    tokens = [len(ids) for run in runs for name, ids_of in run.answers.items() if name[0] == "n" for ids in ids_of[1:]]
    return {
        "itl_plain_ms": round(1e3 * without, 3),
        "itl_structured_ms": round(1e3 * beside, 3),
        "slowdown": round(median(mean(run.structured) / mean(run.plain) - 1 for run in runs), 4),
        "slowdown_of_median_steps": round(median(median(run.structured) / median(run.plain) - 1 for run in runs), 4),
        "grammar_ms": round(1e3 * grammar, 3),
        "mask_share": round(grammar / beside, 4),
        "structured_tokens_per_step": round(mean(tokens), 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 2 where the model cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m bench.structured", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=EngineConfig.model, help="as `headrace worker`; default: %(default)s")
    parser.add_argument("--dtype", default=EngineConfig.dtype, choices=DTYPES, help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=8, help="plain rows, and as many beside them; default: %(default)s")
    parser.add_argument("--steps", type=int, default=48, help="of each engine in a round; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    try:
        config = EngineConfig(model=options.model, dtype=options.dtype)
        plain, structured = Engine.load(config), Engine.load(config)
    except EngineError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    record: report.Record = {
        "benchmark": "structured",
        **measure(plain, structured, options.rows, options.steps, options.rounds),
        "settings": {
            "model": options.model,
            "dtype": str(plain.kv_cache.data.dtype).removeprefix("torch."),
            "rows": options.rows,
            "steps": options.steps,
            "rounds": options.rounds,
        },
        "versions": report.versions(["headrace", "torch", "transformers", "llguidance"]),
        "machine": report.machine(),
    }
    report.print_record(record, as_json=options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
