"""Answers of a given form: always valid, forced tokens without a step, neighbours untouched."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest
from headrace.engine import Engine, EngineConfig, FinishReason, RequestError, SamplingParams, Structure
from headrace.engine.hf_model import TransformersModel
from headrace.engine.structure import StructureCompiler, StructureState

from .runs import Answer, assert_idle, drain, greedy
from .tiny_models import llama_config, load, save_model

WORDS = ["red", "green", "blue", "one", "two"]


def random_schema(generator: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema of bounded size, over the keywords that people use."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "union"]
    kind = generator.choice(kinds + (["object", "object", "array"] * 2 if depth < 2 else []))
    return {"type": kind} if kind in ("boolean", "null") else _schema_of(kind, generator, depth)


def _schema_of(kind: str, generator: random.Random, depth: int) -> dict[str, Any]:  # noqa: PLR0911
    match kind:
        case "object":
            names = generator.sample(WORDS, generator.randint(0, 3))
            return {
                "type": "object",
                "properties": {name: random_schema(generator, depth + 1) for name in names},
                "required": [name for name in names if generator.random() < 0.7],
                "additionalProperties": False,
            }
        case "array":
            least = generator.randint(0, 1)
            items = random_schema(generator, depth + 1)
            return {"type": "array", "items": items, "minItems": least, "maxItems": least + generator.randint(0, 2)}
        case "string":
            return {"type": "string", "minLength": generator.randint(0, 2), "maxLength": generator.randint(2, 8)}
        case "integer":
            least = generator.randint(-50, 50)
            return {"type": "integer", "minimum": least, "maximum": least + generator.randint(0, 500)}
        case "number":
            return {"type": "number", "minimum": 0, "maximum": 1000, "multipleOf": 0.25}
        case "enum":
            return {"enum": [*generator.sample(WORDS, 2), 7, None]}
        case "const":
            return {"const": {"k": [1, "x"]}}
        case "pattern":
            return {"type": "string", "pattern": r"^[a-c]{1,4}-[0-9]{2}$"}
        case _:
            return {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 4}]}


@pytest.fixture(scope="module")
def random_engine(demo_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A tiny random model over the demo model's vocabulary: every token that may come does come."""
    config = llama_config(
        vocab_size=len(demo_tokenizer), hidden_size=16, num_attention_heads=2, max_position_embeddings=900
    )
    model = load(save_model(config, tmp_path_factory.mktemp("random")))
    return Engine(model, demo_tokenizer, EngineConfig(model="random", kv_cache_memory=64 << 20), "random")


@pytest.fixture(scope="module")
def engine(demo_model: TransformersModel, demo_tokenizer: Any) -> Engine:
    config = EngineConfig(model="demo", kv_cache_memory=64 << 20, max_num_seqs=64, max_model_len=600)
    return Engine(demo_model, demo_tokenizer, config, "demo")


def structured(schema: Any, seed: int = 0, **settings: Any) -> SamplingParams:
    structure = Structure("json_schema", json.dumps(schema))
    defaults: dict[str, Any] = {"max_tokens": 500, "temperature": 0.9}
    return SamplingParams(seed=seed, structure=structure, **(defaults | settings))


def run_all(engine: Engine, requests: dict[str, SamplingParams], prompt: list[int]) -> dict[str, Answer]:
    for name, params in requests.items():
        engine.add(name, prompt, params)
    answers = drain(engine)
    assert_idle(engine)
    return answers


def test_every_answer_of_200_random_schemas_validates(random_engine: Engine, demo_tokenizer: Any) -> None:
    engine = random_engine
    generator = random.Random(7)
    schemas = [random_schema(generator) for _ in range(200)]
    prompt = demo_tokenizer.encode("Some JSON: ")
    requests = {str(index): structured(schema, seed=index) for index, schema in enumerate(schemas)}
    answers = run_all(engine, requests, prompt)
    for index, schema in enumerate(schemas):
        answer = answers[str(index)]
        assert answer.finish_reason is FinishReason.STOP, (schema, answer.text)
        jsonschema.validate(json.loads(answer.text), schema, jsonschema.Draft202012Validator)
    assert engine.stats.forced_tokens > 200, "forced tokens were skipped ahead"


def test_a_form_changes_nothing_for_its_neighbours(engine: Engine, demo_tokenizer: Any) -> None:
    prompt = demo_tokenizer.encode("The sea")
    alone = run_all(engine, {"plain": greedy(20)}, prompt)["plain"].token_ids
    crowd = {f"s{i}": structured({"type": "object"}, seed=i, max_tokens=20) for i in range(5)}
    mixed = run_all(engine, {**crowd, "plain": greedy(20)}, prompt)
    assert mixed["plain"].token_ids == alone


@pytest.mark.parametrize(
    ("kind", "text", "pattern"),
    [
        ("regex", "[0-9]{3}-[a-f]{2}", "[0-9]{3}-[a-f]{2}"),
        ("choice", '["yes", "no", "may\\"be"]', 'yes|no|may"be'),
        ("grammar", 'root ::= "a"+ ("b" | "c")', "a+[bc]"),
        ("grammar", 'start: "x" /[0-9]/ "y"', "x[0-9]y"),
    ],
)
def test_other_forms(engine: Engine, demo_tokenizer: Any, kind: Any, text: str, pattern: str) -> None:
    params = SamplingParams(seed=3, max_tokens=200, structure=Structure(kind, text))
    answer = run_all(engine, {"r": params}, demo_tokenizer.encode("Answer: "))["r"]
    assert answer.finish_reason is FinishReason.STOP
    assert re.fullmatch(pattern, answer.text)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("json_schema", '{"type": "strin"}', "Invalid type: strin"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum .5. is greater than maximum"),
        ("json_schema", '{"$ref": "http://example.org/schema"}', "example.org"),
        ("regex", "(ab", "unclosed group"),
        ("grammar", 'start: "a" b', 'unknown name: "b"'),
        ("grammar", "root ::= nowhere", "nowhere"),
    ],
)
def test_a_form_that_cannot_be_compiled_is_one_clear_sentence(engine: Engine, kind: Any, text: str, says: str) -> None:
    params = SamplingParams(structure=Structure(kind, text, "guided"))
    with pytest.raises(RequestError, match=f"^guided cannot be compiled: .*{says}") as caught:
        engine.add("r", [5], params)
    assert (caught.value.param, caught.value.code) == ("guided", "invalid_schema")
    assert "\n" not in caught.value.message
    assert_idle(engine)


def test_forced_tokens_leave_the_answer_as_it_would_be(engine: Engine, demo_tokenizer: Any) -> None:
    """Log-probabilities ask for every token to be computed; the text is the same."""
    schema = {
        "type": "object",
        "properties": {"temperature_in_celsius": {"enum": ["low", "high"]}},
        "required": ["temperature_in_celsius"],
        "additionalProperties": False,
    }
    prompt = demo_tokenizer.encode("The weather as JSON: ")
    before = engine.stats.steps
    skipping = run_all(engine, {"r": structured(schema, temperature=0)}, prompt)["r"]
    steps, before = engine.stats.steps - before, engine.stats.steps
    walking = run_all(engine, {"r": structured(schema, temperature=0, logprobs=0)}, prompt)["r"]
    assert json.loads(skipping.text) == json.loads(walking.text)
    assert len(skipping.token_ids) > steps, "some tokens took no step"
    assert len(walking.token_ids) == engine.stats.steps - before


def test_d2_a_paused_answer_keeps_its_place_in_the_grammar(demo_model: Any, demo_tokenizer: Any) -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 3, "maxItems": 4}
    prompt = demo_tokenizer.encode("Rivers: ")
    texts = []
    for blocks in (200, 9):
        memory = blocks * demo_model.geometry.block_bytes(4, demo_model.dtype)
        config = EngineConfig(model="demo", kv_cache_memory=memory, block_size=4, max_num_seqs=8, max_model_len=200)
        engine = Engine(demo_model, demo_tokenizer, config, "demo")
        for index in range(4):
            engine.add(str(index), prompt, structured(schema, seed=index, max_tokens=32))
        answers: dict[str, Answer] = {}
        while engine.has_work:
            engine.scheduler.estimate.ratio = 0.0
            drain_one(engine, answers)
        assert_idle(engine)
        texts.append({name: answer.text for name, answer in answers.items()})
    assert sum(engine.scheduler.stats.preemptions.values()) > 2
    assert texts[0] == texts[1]
    for text in texts[0].values():
        jsonschema.validate(json.loads(text), schema)


def drain_one(engine: Engine, answers: dict[str, Answer]) -> None:
    for output in engine.step():
        answers.setdefault(output.request_id, Answer()).text += output.text


def test_compiled_grammars_are_kept_and_states_are_apart(demo_tokenizer: Any) -> None:
    compiler = StructureCompiler(demo_tokenizer, 49152, {2})
    structure = Structure("choice", '["yes", "no"]')
    first, second = compiler.start(structure), compiler.start(structure)
    assert isinstance(first, StructureState)
    [yes] = demo_tokenizer.encode("yes")
    first.accept(yes)
    assert first.ended
    assert not second.ended
    assert len(compiler._matchers) == 1
