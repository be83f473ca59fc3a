"""What a request asks of its tokens, from the client through a worker and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headrace.producers import Client, Finished
from headrace.producers.events import event_json, parse_event
from headrace.worker.embedded import EmbeddedServer
from headrace.worker.service import WorkerService

from .asking import BOS, EOS, ask, body_of, deltas_of, refused, token_of, tokens_of
from .services import service

LETTERS = tokens_of("abcdefgh")
GREEDY: dict[str, Any] = {"prompt": "Once upon", "max_tokens": 12, "ignore_eos": True, "temperature": 0}
DRAWN: dict[str, Any] = {"prompt": "Once upon", "max_tokens": 12, "ignore_eos": True, "seed": 5}
SAID: dict[str, Any] = {"prompt": "x", "max_tokens": 40, "guided_choice": ["one two three"]}
"""An answer that is known."""


@pytest.fixture(scope="module", autouse=True)
def worker(server: EmbeddedServer, tiny_model: Path) -> Iterator[WorkerService]:
    """A worker for all tests here."""
    with service(server.url, tiny_model, block_size=16) as running:
        yield running


def test_several_answers(client: Client) -> None:
    body = {**DRAWN, "n": 4, "logprobs": 0}
    job_id = client.submit(body)
    result = client.result(job_id, timeout=60)
    assert [choice.index for choice in result.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in result.choices}) == 4
    assert {choice.finish_reason for choice in result.choices} == {"length"}
    assert (result.prompt_tokens, result.completion_tokens) == (9, 48)
    assert result.text == ask(client, DRAWN).text, "the first is the one that there would be alone"
    for choice in result.choices:
        deltas = deltas_of(client, job_id, choice.index)
        assert "".join(delta.text for delta in deltas) == choice.text
        assert sum(len(delta.token_ids) for delta in deltas) == 12
        assert [one for delta in deltas for one in delta.logprobs or ()] == choice.logprobs
        assert [one.token_id for one in choice.logprobs or ()] == [t for delta in deltas for t in delta.token_ids]
    *events, last = client.stream(job_id)
    assert isinstance(last, Finished)
    for event in (*events, last):
        assert parse_event(event.position, event_json(event)) == event, "as JSON it says the same"
    assert last.result == result
    assert len(body_of(body, result)["choices"]) == 4


def test_answers_end_one_by_one(client: Client) -> None:
    body = {**DRAWN, "n": 6, "max_tokens": 200, "ignore_eos": False, "logit_bias": {str(EOS): 3}}
    result = ask(client, body)
    ends = {(choice.finish_reason, choice.stop_reason) for choice in result.choices}
    assert ends == {("stop", None)}
    assert len({len(choice.text) for choice in result.choices}) > 3


def test_equal_seeds_and_others(client: Client) -> None:
    texts = {seed: ask(client, {**DRAWN, "seed": seed}).text for seed in (5, 6, 0, -1, 2**64 - 1)}
    assert ask(client, DRAWN).text == texts[5]
    assert texts[-1] == texts[2**64 - 1], "the same 64 bits"
    assert len(set(texts.values())) == 4


def test_a_request_without_a_seed_can_be_repeated(client: Client) -> None:
    job_id = client.submit({**DRAWN, "seed": None})
    kept = client.request(job_id)
    assert ask(client, kept).text == client.result(job_id, timeout=60).text
    assert client.request(client.submit({**DRAWN, "seed": None}))["seed"] != kept["seed"]


def test_log_probabilities_of_a_chat(client: Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 6,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 3,
    }
    [answer] = body_of(body, ask(client, body))["choices"]
    found = answer["logprobs"]["content"]
    assert len(found) == 6
    for one in found:
        assert [len(likely["bytes"]) for likely in one["top_logprobs"]] == [1, 1, 1]
        assert one["logprob"] == one["top_logprobs"][0]["logprob"], "greedy takes the likeliest"
        assert 0 >= one["logprob"] >= one["top_logprobs"][1]["logprob"] >= one["top_logprobs"][2]["logprob"]
    text = bytes(byte for one in found for byte in one["bytes"]).decode(errors="replace")
    assert text.startswith(answer["message"]["content"])
    bare = ask(client, {**body, "top_logprobs": None})
    assert [one.top_logprobs for one in bare.choices[0].logprobs or ()] == [[]] * 6
    assert ask(client, {**body, "logprobs": False, "top_logprobs": None}).choices[0].logprobs is None


def test_log_probabilities_are_the_models_own(client: Client) -> None:
    changed = {"logit_bias": {str(token_of("q")): 100}, "temperature": 2, "logprobs": 20}
    plain = ask(client, {**DRAWN, "max_tokens": 1, "logprobs": 20}).choices[0].logprobs
    biased = ask(client, {**DRAWN, "max_tokens": 1, **changed}).choices[0].logprobs
    assert plain and biased
    assert biased[0].token == "q"
    assert biased[0].logprob < -1
    assert biased[0].top_logprobs == pytest.approx(plain[0].top_logprobs)


def test_every_token_that_a_grammar_forces_is_scored(client: Client) -> None:
    result = ask(client, {**SAID, "logprobs": 1})
    assert result.text == "one two three"
    assert "".join(one.token for one in result.choices[0].logprobs or ()).startswith("one two three")
    assert len(result.choices[0].logprobs or ()) == result.completion_tokens


def test_log_probabilities_of_the_prompt(client: Client) -> None:
    body = {**GREEDY, "prompt": "Once upon a time there was", "prompt_logprobs": 2}
    for _ in range(2):  # the prefix cache holds the prompt the second time
        result = ask(client, body)
        assert result.prompt_logprobs is not None
        first, *others = result.prompt_logprobs
        assert first is None
        assert "".join(one.token for one in others if one) == "nce upon a time there was"
        assert {len(one.top_logprobs) for one in others if one} == {2}
        assert result.choices[0].logprobs is None
        assert result.cached_tokens == 0, "scored prompts are computed whole"
    [answer] = body_of(body, result)["choices"]
    assert len(answer["prompt_logprobs"]) == result.prompt_tokens
    assert str(token_of("n")) in answer["prompt_logprobs"][1]
    several = ask(client, {**body, "n": 2})
    assert several.prompt_logprobs == result.prompt_logprobs


@pytest.mark.parametrize(
    ("prompt", "echoed"),
    [
        ("Once \u00e9 upon", "Once \u00e9 upon"),
        ("\u00e9", "\u00e9"),
        ("<s>Once", "<s>Once"),
        ([BOS, *tokens_of("Once")], "Once"),
        (tokens_of("O"), "O"),
    ],
    ids=["text", "one character", "control text", "control token", "one token"],
)
def test_an_echoed_prompt_and_where_its_tokens_stand(client: Client, prompt: Any, echoed: str) -> None:
    body = {**DRAWN, "prompt": prompt, "allowed_token_ids": LETTERS, "echo": True, "logprobs": 1, "n": 2}
    job_id = client.submit(body)
    result = client.result(job_id, timeout=60)
    plain = ask(client, {**body, "echo": False})
    for choice, unechoed in zip(body_of(body, result)["choices"], plain.choices, strict=True):
        text = choice["text"]
        assert text == echoed + unechoed.text
        assert "".join(delta.text for delta in deltas_of(client, job_id, choice["index"])) == text
        logprobs = choice["logprobs"]
        assert {len(column) for column in logprobs.values()} == {result.prompt_tokens + 12}
        assert logprobs["token_logprobs"][0] is None
        assert None not in logprobs["token_logprobs"][1:]
        offsets = logprobs["text_offset"]
        assert offsets[0] == 0
        assert offsets[-12:] == list(range(len(echoed), len(echoed) + 12))
        for token, offset in zip(logprobs["tokens"], offsets, strict=True):
            assert token in ("<s>", "\ufffd") or text.startswith(token, offset)
        assert "prompt_logprobs" not in choice


def test_an_echo_without_log_probabilities(client: Client) -> None:
    body = {**GREEDY, "echo": True}
    result = ask(client, body)
    assert result.text == "Once upon" + ask(client, GREEDY).text
    assert result.prompt_logprobs is None
    assert body_of(body, result)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("include", [False, True])
def test_stop_texts(client: Client, include: bool) -> None:
    job_id = client.submit({**SAID, "stop": ["never", "two", "three"], "include_stop_str_in_output": include})
    [choice] = client.result(job_id, timeout=60).choices
    assert choice.text == ("one two" if include else "one ")
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "two")
    assert "".join(delta.text for delta in deltas_of(client, job_id)) == choice.text
    body = {**SAID, "stop": "two"}
    [answer] = body_of(body, ask(client, body))["choices"]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", "two")


def test_an_answer_that_the_model_ends_has_no_stop_reason(client: Client) -> None:
    body = {**SAID, "stop": ["never"]}
    [answer] = body_of(body, ask(client, body))["choices"]
    assert (answer["text"], answer["finish_reason"]) == ("one two three", "stop")
    assert "stop_reason" not in answer


@pytest.mark.parametrize("include", [False, True])
def test_stop_tokens(client: Client, include: bool) -> None:
    body = {**SAID, "stop_token_ids": [token_of("t")], "include_stop_str_in_output": include}
    [choice] = ask(client, body).choices
    assert choice.text == ("one t" if include else "one ")
    assert (choice.finish_reason, choice.stop_reason) == ("stop", token_of("t"))


def test_a_stop_token_that_the_model_lacks_is_a_400(client: Client) -> None:
    param, message = refused(client, {**SAID, "stop_token_ids": [259]})
    assert param == "stop_token_ids"
    assert "259" in message


def test_the_end_of_an_answer_and_what_holds_it_off(client: Client) -> None:
    eager = {**DRAWN, "ignore_eos": False, "logit_bias": {str(EOS): 100}}
    result = ask(client, eager)
    assert (result.completion_tokens, result.text, result.finish_reason) == (1, "", "stop")
    result = ask(client, {**eager, "min_tokens": 5})
    assert (result.completion_tokens, result.finish_reason) == (6, "stop")
    result = ask(client, {**eager, "ignore_eos": True})
    assert (result.completion_tokens, result.text, result.finish_reason) == (12, "", "length")
    result = ask(client, {**eager, "ignore_eos": True, "skip_special_tokens": False})
    assert result.text == "</s>" * 12
    stopped = {**DRAWN, "allowed_token_ids": [token_of("a")], "stop": ["aa"], "min_tokens": 7}
    result = ask(client, stopped)
    assert (result.finish_reason, result.choices[0].stop_reason) == ("stop", "aa")
    assert 7 <= result.completion_tokens < 12


def test_the_end_of_a_long_prompt(client: Client) -> None:
    whole = "a long story. Once upon"
    result = ask(client, {**GREEDY, "prompt": whole, "truncate_prompt_tokens": 9})
    assert result.prompt_tokens == 9
    assert result.text == ask(client, GREEDY).text
    body = {**GREEDY, "prompt": whole, "truncate_prompt_tokens": 9, "echo": True, "logprobs": 0}
    [answer] = body_of(body, ask(client, body))["choices"]
    assert answer["text"].startswith("Once upon")
    assert answer["logprobs"]["tokens"][:9] == list("Once upon")
    assert answer["logprobs"]["text_offset"][:9] == list(range(9))
    assert ask(client, {**GREEDY, "truncate_prompt_tokens": 100}).prompt_tokens == 9
    longest = ask(client, {**GREEDY, "prompt": "x" * 5000, "truncate_prompt_tokens": -1})
    assert (longest.prompt_tokens, longest.completion_tokens) == (4096 - 12, 12)


@pytest.mark.parametrize(("length", "kept"), [(9, 9), (2048, 2048), (2049, 2048)])
def test_a_prompt_makes_half_of_the_room_for_an_answer_without_end(client: Client, length: int, kept: int) -> None:
    ended = {"logit_bias": {str(EOS): 100}}
    for limit in (4095, 4096, 1_000_000):
        body = {"prompt": "x" * length, "truncate_prompt_tokens": -1, "max_tokens": limit, **ended}
        assert ask(client, body).prompt_tokens == kept


def test_biases_and_bans(client: Client) -> None:
    [first] = ask(client, {**GREEDY, "max_tokens": 1, "logprobs": 0}).choices[0].logprobs or []
    [other] = ask(client, {**GREEDY, "max_tokens": 1, "logit_bias": {str(first.token_id): -100}, "logprobs": 0}).choices
    assert [one.token_id for one in other.logprobs or ()] != [first.token_id]
    assert ask(client, {**DRAWN, "logit_bias": {str(token_of("q")): 100}}).text == "q" * 12
    assert ask(client, {**DRAWN, "logit_bias": {str(token_of("q")): 100}}, n=2).choices[1].text == "q" * 12
    assert re.fullmatch("[a-h]{12}", ask(client, {**DRAWN, "allowed_token_ids": LETTERS}).text)
    param, _ = refused(client, {**DRAWN, "logit_bias": {"259": 1}})
    assert param == "logit_bias"
    param, _ = refused(client, {**DRAWN, "allowed_token_ids": [259]})
    assert param == "allowed_token_ids"


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0}])
def test_a_distribution_of_one_token_is_greedy(client: Client, narrow: dict[str, Any]) -> None:
    assert ask(client, {**DRAWN, **narrow}).text == ask(client, GREEDY).text != ask(client, DRAWN).text


def test_control_text_in_a_prompt_is_a_token_unless_that_is_refused(client: Client) -> None:
    body = {**GREEDY, "prompt": "<s>Once", "max_tokens": 1}
    assert ask(client, body).prompt_tokens == 1 + 4
    assert ask(client, {**body, "allow_control_tokens": False}).prompt_tokens == 3 + 4


def test_words_that_must_not_come(client: Client) -> None:
    body = {**DRAWN, "max_tokens": 100, "allowed_token_ids": tokens_of("ab")}
    assert "ab" in ask(client, body).text
    text = ask(client, {**body, "bad_words": ["ab"]}).text
    assert "ab" not in text
    assert re.fullmatch("b*a*", text)


def test_penalties(client: Client) -> None:
    body = {**GREEDY, "max_tokens": 8, "allowed_token_ids": LETTERS}
    plain = ask(client, {**body, "logit_bias": {str(token_of("a")): 100}}).text
    assert plain == "a" * 8
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 100.0}):
        text = ask(client, {**body, **penalty, "logit_bias": {str(token): 50 for token in LETTERS}}).text
        assert len(set(text)) > len(set(ask(client, body).text)), penalty


def test_cached_tokens_are_counted_and_kept_apart_by_salt_and_tenant(client: Client) -> None:
    def cached(**fields: Any) -> int:
        body = {**GREEDY, "prompt": "s" * 50, **fields}
        usage = body_of(body, ask(client, body))["usage"]
        assert usage["prompt_tokens"] == 50
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    apart: list[dict[str, Any]] = [
        {},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"tenant": "t"},
        {"tenant": "t", "cache_salt": "a"},
    ]
    assert [cached(**fields) for fields in apart] == [0] * 5
    assert [cached(**fields) for fields in apart] == [48] * 5
    assert cached(prefix_cache=False) == 0
    assert cached(n=2) == 48
