"""What numerics cost in quality: perplexity of a fixed text, and how often greedy answers agree with float32's.

python -m bench.quality
python -m bench.quality --model my-model --json

The text is a part of Python's own documentation, as the interpreter brings it.
"""

from __future__ import annotations

import math
import pydoc_data.topics
import sys
from collections.abc import Sequence
from typing import Any

from headrace.engine import Engine, EngineConfig, EngineError, SamplingParams

from . import options, report

TOPICS = ("class", "try", "with", "import", "assignment", "typesseq")
WINDOW = 512
"""Tokens that are scored together."""
ANSWER = 48
"""Tokens of a greedy answer."""
NUMERICS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}


def windows(engine: Engine, most: int) -> list[list[int]]:
    """The text's first tokens in windows of :data:`WINDOW`, ``most`` of them."""
    text = "\n".join(pydoc_data.topics.topics[topic] for topic in TOPICS)
    ids = engine.encoder.encode_text(text)
    return [ids[start : start + WINDOW] for start in range(0, most * WINDOW, WINDOW)]


def perplexity(engine: Engine, texts: Sequence[Sequence[int]]) -> float:
    """e to the mean surprise of a token, after those before it in its window."""
    for index, text in enumerate(texts):
        engine.add(str(index), list(text), SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0))
    surprises: list[float] = []
    while engine.has_work:
        for output in engine.step():
            surprises += [-token.logprob for token in output.prompt_logprobs or ()]
    return math.exp(sum(surprises) / len(surprises))


def answers(engine: Engine, texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Greedy answers to the beginnings of the windows."""
    found: dict[str, list[int]] = {str(index): [] for index in range(len(texts))}
    for index, text in enumerate(texts):
        params = SamplingParams(max_tokens=ANSWER, temperature=0, ignore_eos=True)
        engine.add(str(index), list(text[: WINDOW // 4]), params)
    while engine.has_work:
        for output in engine.step():
            found[output.request_id] += output.token_ids
    return list(found.values())


def agreement(answers: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> float:
    """Which part of the answers' tokens comes before the first that differs."""
    alike = 0
    for answer, wanted in zip(answers, expected, strict=True):
        differs = [index for index, (a, b) in enumerate(zip(answer, wanted, strict=True)) if a != b]
        alike += differs[0] if differs else len(wanted)
    return alike / sum(map(len, expected))


def run(model: str, most: int) -> report.Record:
    """Measure all of :data:`NUMERICS`."""
    record: report.Record = {"model": model, "scored_tokens": most * WINDOW}
    expected: list[list[int]] = []
    for name, settings in NUMERICS.items():
        engine = Engine.load(EngineConfig(model=model, prefix_cache=False, **settings))
        texts = windows(engine, most)
        record[f"perplexity_{name}"] = round(perplexity(engine, texts), 4)
        found = answers(engine, texts)
        expected = expected or found
        record[f"greedy_agreement_{name}"] = round(agreement(found, expected), 4)
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 where the model is impossible."""
    asked = options.parser("bench.quality", __doc__).parse_args(arguments)
    try:
        figures = run(options.engine_flags(asked).model, asked.limit or 8)
    except EngineError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    versions = report.versions(["headrace", "torch", "transformers"])
    report.print_record(
        {"benchmark": "quality", **figures, "versions": versions, "machine": report.machine()}, as_json=asked.json
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
