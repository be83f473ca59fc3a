"""Requests: what is accepted, what is refused and in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace.producers import GenerationRequest, InvalidRequest
from headrace.producers.records import request_from, submission

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
NAN, INFINITY = float("nan"), float("inf")


def parse(**fields: Any) -> GenerationRequest:
    return GenerationRequest.parse({**CHAT, **fields})


def refusal(body: Any) -> InvalidRequest:
    """Why a body is refused."""
    with pytest.raises(InvalidRequest) as caught:
        GenerationRequest.parse(body)
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (NAN, "NaN", INFINITY, -1, 2.1, "0.5", True, ["1"], {"a": 1})),
        *(("top_p", value) for value in (0, NAN, 1.5, -0.1, "1", False)),
        *(("min_p", value) for value in (NAN, 1.5, -0.1, True)),
        *(("top_k", value) for value in (-2, 1.5, "5", True, 1 << 31)),
        *(("seed", value) for value in ("7", 1 << 64, -(1 << 63) - 1, 1.0, True)),
        *(("max_tokens", value) for value in (0, -1, 1.0, "5", True, 10**4000)),
        *(("max_completion_tokens", value) for value in (0, True, "5")),
        *(("min_tokens", value) for value in (-1, 1.0, True)),
        *(("n", value) for value in (0, 129, True, "2")),
        *(("presence_penalty", value) for value in (NAN, 10, -2.1, "1", False)),
        *(("frequency_penalty", value) for value in (NAN, 10, -2.1, "1", False)),
        *(("repetition_penalty", value) for value in (NAN, 0, -1, 1e30, "1", True)),
        *(("top_logprobs", value) for value in (-1, 21, True, 1.5)),
        *(("prompt_logprobs", value) for value in (-1, 21, True)),
        *((name, 1) for name in ("echo", "skip_special_tokens", "include_stop_str_in_output", "parallel_tool_calls")),
        ("ignore_eos", 1),
        ("ignore_eos", "true"),
        ("model", 5),
    ],
)
def test_a9_values_out_of_range_or_of_another_type_are_refused_by_name(name: str, value: Any) -> None:
    error = refusal({**CHAT, name: value})
    assert error.param == name
    assert error.message.startswith(f"{name}: Input should be")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (0, 1e-4, 1, 2, 2.0)),
        *(("top_p", value) for value in (1e-4, 1)),
        *(("top_k", value) for value in (-1, 0, 1, 10**7)),
        *(("seed", value) for value in (-1, 0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)),
        ("max_tokens", 10000),
    ],
)
def test_a9_values_at_the_edges_are_kept(name: str, value: Any) -> None:
    assert getattr(parse(**{name: value}), name) == value


def test_a10_no_limit_and_either_name_of_it() -> None:
    assert parse().token_limit is None
    assert parse(max_tokens=None).token_limit is None
    assert parse(max_tokens=5).token_limit == parse(max_completion_tokens=5).token_limit == 5
    assert parse(max_tokens=5, max_completion_tokens=5).token_limit == 5
    assert "differ" in refusal({**CHAT, "max_tokens": 5, "max_completion_tokens": 6}).message


def test_a10_zero_tokens_are_refused_with_the_least_allowed() -> None:
    assert refusal({**CHAT, "max_tokens": 0}).message == "max_tokens: Input should be greater than or equal to 1"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"prompt": []},
        {},
        {"messages": None},
        {**CHAT, "prompt": "hi"},
    ],
)
def test_a11_no_input_or_two(body: dict[str, Any]) -> None:
    assert refusal(body)


@pytest.mark.parametrize("content", ["", "   ", "\n"])
def test_a11_empty_texts_are_the_models_to_judge(content: str) -> None:
    assert GenerationRequest.parse({"messages": [{"role": "user", "content": content}]})
    assert GenerationRequest.parse({"prompt": content}).prompt == content


def test_a12_a_text_and_a_list_of_it_are_the_same() -> None:
    assert parse(stop="END") == parse(stop=["END"])
    assert parse(stop=["END"] * 16).stop == ["END"] * 16


@pytest.mark.parametrize("stop", [[], None])
def test_a12_no_stop_is_no_stop(stop: Any) -> None:
    assert not parse(stop=stop).stop


@pytest.mark.parametrize("stop", ["", ["", "END"], [50256], ["x"] * 17, 5, {}, True, [None]])
def test_a12_other_stops_are_refused_by_name(stop: Any) -> None:
    error = refusal({**CHAT, "stop": stop})
    assert error.param == "stop"
    assert error.message.startswith("stop")


def test_a4_lone_surrogates_become_replacement_characters() -> None:
    texts = [("a\ud83d", "a\ufffd"), ("\ud83db", "\ufffdb"), ("\udc00\ud800", "\ufffd\ufffd"), ("\ud83c\udf78", "🍸")]
    for given, kept in texts:
        request = GenerationRequest.parse(json.loads(json.dumps({"prompt": given, "model": given})))
        assert request.prompt == request.model == kept
        part = {"type": "text", "text": given}
        for content in (given, [part]):
            chat = parse(messages=[{"role": "user", "content": content, "name": given}])
            assert chat.messages and (chat.messages[0].content, chat.messages[0].name) == (kept, kept)
        assert kept in submission(request).request, "it can be written"
    assert parse(messages=[{"role": "user", "content": "\ufeffx"}]).model_dump_json().count("\ufeff") == 1


@pytest.mark.parametrize("name", ["stream", "suffix", "best_of", "functions", "audio"])
def test_known_parameters_that_are_not_offered(name: str) -> None:
    for value in (2, ["x"], {"type": "json_object"}):
        error = refusal({**CHAT, name: value})
        assert (error.message, error.code, error.param) == (f"{name} is not supported", "unsupported_parameter", name)
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize(("name", "default"), [("best_of", 1), ("stream", False), ("tools", [])])
def test_their_defaults_are_accepted(name: str, default: Any) -> None:
    assert parse(**{name: default}) == parse()


@pytest.mark.parametrize(("name", "value"), [("n", True), ("presence_penalty", False), ("stream", 0)])
def test_a_value_that_only_equals_the_default_is_refused(name: str, value: Any) -> None:
    assert refusal({**CHAT, name: value}).param == name


def test_unknown_parameters_are_refused_by_name() -> None:
    error = refusal({**CHAT, "temprature": 0})
    assert (error.message, error.code) == ("unknown parameter 'temprature'", "unknown_parameter")


def test_harmless_parameters_are_passed_over() -> None:
    assert parse(user="u", metadata={"a": NAN}, store=True, service_tier="auto") == parse()


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": " b"}], "a b"),
        ([], ""),
        (None, ""),
    ],
)
def test_d12_text_parts_are_joined(parts: Any, text: str) -> None:
    [message] = parse(messages=[{"role": "user", "content": parts}]).messages or []
    assert message.content == text


@pytest.mark.parametrize("content", [42, {}, True, ["a"], [{"type": "image_url", "image_url": {}}], [{"text": "a"}]])
def test_d12_other_contents_are_refused(content: Any) -> None:
    error = refusal({"messages": [{"role": "user", "content": content}]})
    assert error.message.startswith("messages.0.content: ")
    assert error.param == "messages"


def test_messages_say_what_is_wrong_with_a_prompt() -> None:
    prompts: list[Any] = [[], [1, "a"], [1, True], [-1], 5, {}, [[1]]]
    for prompt in prompts:
        error = refusal({"prompt": prompt})
        assert error.message == "prompt: it must be a text, or a list of token ids that is not empty"
        assert error.param == "prompt"


@pytest.mark.parametrize("body", [[1, 2], "hello", None, 5, True])
def test_a5_a_body_that_is_no_object(body: Any) -> None:
    assert "it must be a JSON object" in refusal(body).message


def test_seeds_are_kept_and_missing_ones_drawn_once() -> None:
    assert submission(parse(seed=7)).request == submission(parse(seed=7)).request
    seeds = set()
    for _ in range(20):
        request = submission(parse()).request
        seed = GenerationRequest.model_validate_json(request).seed
        assert seed is not None
        assert GenerationRequest.model_validate_json(request).with_seed().seed == seed
        seeds.add(seed)
    assert len(seeds) == 20


def test_a_request_survives_its_record() -> None:
    request = parse(seed=(1 << 64) - 1, temperature=1e-4, top_k=-1, max_completion_tokens=9, model="m")
    assert GenerationRequest.model_validate_json(submission(request).request) == request
    ids = GenerationRequest.parse({"prompt": [1, 2, 3], "seed": 0})
    assert GenerationRequest.model_validate_json(submission(ids).request) == ids


def test_what_callers_may_pass_as_a_request() -> None:
    expected = parse(max_tokens=3)
    earlier = {"job_id": "x", "text": "hi", "state": "succeeded"}
    for request in ("hi", CHAT["messages"], CHAT, parse(), earlier, {**CHAT, "max_tokens": 9}):
        assert request_from(request, {"max_tokens": 3}) == expected
    assert request_from(None, {**CHAT, "max_tokens": 3}) == expected
    with pytest.raises(InvalidRequest, match="must be a text, a list of messages, or a body"):
        request_from(5, {})
