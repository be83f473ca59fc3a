"""Reading a job's events: late, again from any position, past trimmed logs and over two attempts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from headrace.producers import (
    AsyncClient,
    Client,
    Delta,
    Event,
    Finished,
    JobNotFound,
    JobState,
    Reset,
    Started,
    StreamPositionError,
    WaitTimeout,
)
from headrace.producers.events import START
from headrace.producers.ledger import Ledger

from .attempts import append, claim_one, finish, job, reset, takes_over

Reader = Callable[..., Iterator[Event]]


def read_async(url: str, job_id: str, **options: object) -> Iterator[Event]:
    """What the asyncio client reads, event by event."""
    loop = asyncio.new_event_loop()
    client = AsyncClient(url)
    events = client.stream(job_id, **options)  # type: ignore[arg-type]
    try:
        while True:
            try:
                yield loop.run_until_complete(anext(events))
            except StopAsyncIteration:
                return
    finally:
        loop.run_until_complete(client.close())
        loop.close()


@pytest.fixture(params=["sync", "async"])
def read(request: pytest.FixtureRequest, url: str, client: Client) -> Reader:
    """``stream`` of either client."""
    if request.param == "sync":
        return client.stream
    return lambda job_id, **options: read_async(url, job_id, **options)


def written(ledger: Ledger, job_id: str = "j", deltas: int = 5) -> str:
    """A finished job with so many deltas; returns its text."""
    ledger.submit([job(job_id)])
    claim = claim_one(ledger)
    texts = [f"t{seq} " for seq in range(1, deltas + 1)]
    for seq, text in enumerate(texts, start=1):
        append(ledger, claim, seq, text)
    finish(ledger, claim, text="".join(texts))
    return "".join(texts)


def text_of(events: list[Event]) -> str:
    """What a reader shows who starts over at a reset."""
    text = ""
    for event in events:
        if isinstance(event, Reset):
            text = ""
        elif isinstance(event, Delta):
            text += event.text
    return text


def test_a_late_reader_gets_every_event_once(ledger: Ledger, read: Reader) -> None:
    text = written(ledger)
    events = list(read("j"))
    assert [type(event) for event in events] == [Started, *[Delta] * 5, Finished]
    assert text_of(events) == text
    assert isinstance(events[-1], Finished)
    assert events[-1].result.text == text
    assert [event.seq for event in events if isinstance(event, Delta)] == [1, 2, 3, 4, 5]


def test_b8_a_reader_that_comes_back_after_any_event_misses_nothing(ledger: Ledger, read: Reader) -> None:
    text = written(ledger)
    events = list(read("j"))
    for seen in range(len(events) + 1):
        position = events[seen - 1].position if seen else START
        rest = list(read("j", after=position))
        assert events[:seen] + rest == events
        assert text_of(events[:seen] + rest) == text


def test_b8_coming_back_again_and_again_while_the_job_runs(ledger: Ledger, read: Reader) -> None:
    ledger.submit([job("j")])
    claim, position, events = None, START, list[Event]()
    for step in range(7):
        if step == 0:
            claim = claim_one(ledger)
        elif step == 6:
            assert claim and finish(ledger, claim, text="t1 t2 t3 t4 t5 ") == 1
        else:
            assert claim and append(ledger, claim, step, f"t{step} ") == 1
        # One event, and the connection is gone.
        event = next(iter(read("j", after=position)))
        position = event.position
        events.append(event)
    assert text_of(events) == "t1 t2 t3 t4 t5 "
    assert [type(event) for event in events] == [Started, *[Delta] * 5, Finished]
    assert list(read("j", after=position)) == []


@pytest.mark.parametrize("after", ["-1", "", "0", "abc", "1-", "-1-0", "1-1-1", "$", "+", "(0-0", "0-0\n", "٣-٣"])
def test_b8_a_malformed_position_is_refused(ledger: Ledger, read: Reader, after: str) -> None:
    written(ledger)
    with pytest.raises(StreamPositionError, match="is no position"):
        list(read("j", after=after))


def test_b8_a_position_from_the_future_is_refused(ledger: Ledger, read: Reader) -> None:
    written(ledger)
    with pytest.raises(StreamPositionError, match="after the newest event"):
        list(read("j", after="99999999999999-0"))
    ledger.submit([job("queued")])
    with pytest.raises(StreamPositionError, match="after the newest event"):
        list(read("queued", after="99999999999999-0"))


def test_a_job_that_is_not_there(read: Reader) -> None:
    with pytest.raises(JobNotFound, match="no job nobody"):
        list(read("nobody"))


def test_a_job_whose_record_expires_under_the_reader(ledger: Ledger, read: Reader) -> None:
    ledger.submit([job("j")])
    claim_one(ledger)
    events = iter(read("j", timeout=20))
    assert isinstance(next(events), Started)
    ledger.redis.delete(ledger.keys.job("j"), ledger.keys.events("j"))
    with pytest.raises(JobNotFound):
        list(events)


def test_a_trimmed_beginning_is_an_error(ledger: Ledger, read: Reader) -> None:
    written(ledger)
    events = list(read("j"))
    ledger.redis.xtrim(ledger.keys.events("j"), maxlen=3, approximate=False)
    for seen in (START, events[0].position, events[2].position):
        with pytest.raises(StreamPositionError, match="trimmed"):
            list(read("j", after=seen))
    assert list(read("j", after=events[4].position)) == events[5:]


def test_the_result_of_a_job_with_a_trimmed_log_can_be_read(ledger: Ledger, client: Client, url: str) -> None:
    text = written(ledger)
    ledger.redis.xtrim(ledger.keys.events("j"), maxlen=1, approximate=False)
    assert client.result("j", timeout=5).text == text

    async def result() -> str:
        async with AsyncClient(url) as connected:
            return (await connected.result("j", timeout=5)).text

    assert asyncio.run(result()) == text


def test_a_gap_under_the_reader_is_an_error(ledger: Ledger, read: Reader) -> None:
    ledger.submit([job("j")])
    claim = claim_one(ledger)
    append(ledger, claim, 1, "a")
    events = iter(read("j", timeout=20))
    assert [next(events), next(events)]
    for seq in range(2, 6):
        append(ledger, claim, seq, "b")
    ledger.redis.xtrim(ledger.keys.events("j"), maxlen=2, approximate=False)
    with pytest.raises(StreamPositionError, match="before delta 4 of attempt 1 were trimmed"):
        list(events)


def test_a_gap_before_the_first_delta_is_an_error(ledger: Ledger, read: Reader) -> None:
    ledger.submit([job("j")])
    claim = claim_one(ledger)
    events = iter(read("j", timeout=20))
    assert isinstance(next(events), Started)
    for seq in range(1, 5):
        append(ledger, claim, seq, "b")
    ledger.redis.xtrim(ledger.keys.events("j"), maxlen=2, approximate=False)
    with pytest.raises(StreamPositionError, match="trimmed"):
        list(events)


def test_a_gap_over_the_start_of_a_second_attempt_is_an_error(ledger: Ledger, read: Reader) -> None:
    ledger.submit([job("j")])
    first = claim_one(ledger)
    append(ledger, first, 1, "a")
    events = iter(read("j", timeout=20))
    assert isinstance([next(events), next(events)][1], Delta)
    second = takes_over(ledger, first, "w2")
    for seq in range(2, 5):
        append(ledger, second, seq, "b")
    ledger.redis.xtrim(ledger.keys.events("j"), maxlen=1, approximate=False)
    with pytest.raises(StreamPositionError, match="trimmed"):
        list(events)


def test_b8_a_second_attempt_goes_on_after_the_first(ledger: Ledger, read: Reader) -> None:
    ledger.submit([job("j")])
    first = claim_one(ledger, "w1")
    append(ledger, first, 1, "one ")
    append(ledger, first, 2, "unbroken ")
    second = takes_over(ledger, first, "w2")
    assert second.seq == 2
    assert append(ledger, first, 3, "zombie ") == 0
    append(ledger, second, 3, "text")
    assert finish(ledger, first) == 0
    finish(ledger, second, text="one unbroken text")
    events = list(read("j"))
    assert [type(event) for event in events] == [Started, Delta, Delta, Started, Delta, Finished]
    assert text_of(events) == "one unbroken text"
    assert [event.attempt for event in events if isinstance(event, Delta)] == [1, 1, 2]
    for seen in range(len(events)):
        assert events[: seen + 1] + list(read("j", after=events[seen].position)) == events


def test_b8_an_attempt_that_cannot_go_on_is_a_reset_and_then_its_text_only(ledger: Ledger, read: Reader) -> None:
    ledger.submit([job("j")])
    first = claim_one(ledger, "w1")
    append(ledger, first, 1, "void ")
    append(ledger, first, 2, "void ")
    second = takes_over(ledger, first, "w2")
    assert [reset(ledger, second) for _ in range(2)] == [1, 1], "repeated, as after a reply that was lost"
    assert reset(ledger, first) == 0
    append(ledger, second, 1, "right ")
    assert append(ledger, first, 3, "zombie ") == 0
    append(ledger, second, 2, "text")
    assert reset(ledger, second) == 1, "a late repetition voids nothing"
    finish(ledger, second, text="right text")
    events = list(read("j"))
    assert [type(event) for event in events] == [Started, Delta, Delta, Started, Reset, Delta, Delta, Finished]
    assert text_of(events) == "right text"
    for seen in range(len(events)):
        assert events[: seen + 1] + list(read("j", after=events[seen].position)) == events


def test_deltas_trimmed_before_a_second_attempt_are_missed(ledger: Ledger, read: Reader) -> None:
    """The second attempt says how many deltas stand before it, so even a gap right there is seen."""
    ledger.submit([job("j")])
    first = claim_one(ledger, "w1")
    append(ledger, first, 1, "a")
    events = iter(read("j", timeout=20))
    assert isinstance([next(events), next(events)][1], Delta)
    append(ledger, first, 2, "b")
    takes_over(ledger, first, "w2")
    ledger.redis.xtrim(ledger.keys.events("j"), maxlen=1, approximate=False)
    with pytest.raises(StreamPositionError, match="before the start of attempt 2 were trimmed"):
        list(events)


def test_an_attempt_without_text_needs_no_reset(ledger: Ledger, read: Reader) -> None:
    ledger.submit([job("j")])
    second = takes_over(ledger, claim_one(ledger, "w1"), "w2")
    append(ledger, second, 1, "text")
    finish(ledger, second, text="text")
    assert [type(event) for event in read("j")] == [Started, Started, Delta, Finished]


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED])
def test_every_ending_is_one_terminal_event(ledger: Ledger, read: Reader, state: JobState) -> None:
    ledger.submit([job("j")])
    claim = claim_one(ledger)
    append(ledger, claim, 1, "part")
    for _ in range(3):
        if state is JobState.CANCELLED:
            ledger.cancel("j")
        else:
            finish(ledger, claim, state)
            ledger.cancel("j")
    finish(ledger, claim)
    events = list(read("j"))
    assert [type(event) for event in events] == [Started, Delta, Finished]
    assert isinstance(events[-1], Finished)
    assert events[-1].result.state is state


def test_waiting_ends_when_the_time_is_over(ledger: Ledger, read: Reader) -> None:
    ledger.submit([job("j")])
    with pytest.raises(WaitTimeout, match=r"did not end within 0\.2 s"):
        list(read("j", timeout=0.2))
    append(ledger, claim_one(ledger), 1, "a")
    got = []
    with pytest.raises(WaitTimeout):
        for event in read("j", timeout=0):
            got.append(event)
    assert [type(event) for event in got] == [Started, Delta]


def test_a_reader_follows_a_job_as_it_is_written(ledger: Ledger, read: Reader) -> None:
    ledger.submit([job("j")])
    claim = claim_one(ledger)
    deltas = 0
    for event in read("j"):
        if isinstance(event, Finished):
            break
        # The log holds nothing more: the reader waits for what is written now.
        deltas += 1
        if deltas <= 3:
            append(ledger, claim, deltas, "x")
        else:
            finish(ledger, claim)
        time.sleep(0.01)
    assert deltas == 4
