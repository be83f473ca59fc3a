"""Who is next, and how long anybody can be made to wait: each bound is driven to its edge."""

from __future__ import annotations

from collections import Counter

import pytest
from headrace.engine import ConfigError, RequestError, RequestOptions, Tenant
from headrace.engine.policy import (
    PRIORITY_SECONDS,
    SRPT_MAX_SECONDS,
    SRPT_SECONDS_PER_TOKEN,
    parse_policy,
)
from headrace.engine.request import Request
from headrace.engine.scheduler import Scheduler
from headrace.engine.waiting import FRONT, MAX_PASSES

from .schedulers import names, request, run_out, scheduler, work

EDGE = 1e-6


def admitted(subject: Scheduler) -> list[str]:
    """Names in the order of first service."""
    order = [name for plan in run_out(subject) for name in names(plan)]
    return list(dict.fromkeys(order))


def first_of(policy: str, *requests: Request) -> str:
    subject = scheduler(policy=policy, max_num_seqs=1)
    for each in requests:
        subject.add(each)
    return admitted(subject)[0]


def test_fcfs_is_never_overtaken() -> None:
    urgent = request("urgent", 1, 1, arrival=1.0, priority=0)
    assert first_of("fcfs", urgent, request("first", 60, 60, arrival=1.0 - EDGE, priority=9)) == "first"


@pytest.mark.parametrize(("low", "high"), [(9, 0), (9, 8), (5, 4)])
def test_priority_overtakes_up_to_its_bound_and_no_further(low: int, high: int) -> None:
    bound = (low - high) * PRIORITY_SECONDS
    waiting = request("waiting", 1, 1, arrival=0.0, priority=low)
    assert first_of("priority", waiting, request("urgent", 1, 1, arrival=bound - EDGE, priority=high)) == "urgent"
    assert first_of("priority", waiting, request("urgent", 1, 1, arrival=bound + EDGE, priority=high)) == "waiting"


def test_srpt_overtakes_up_to_its_bound_and_no_further() -> None:
    bound = ((50 + 51) - (1 + 1)) * SRPT_SECONDS_PER_TOKEN
    for arrival, first in ((bound - EDGE, "short"), (bound + EDGE, "long")):
        requests = request("long", 50, 51, arrival=0.0), request("short", 1, 1, arrival=arrival)
        assert first_of("srpt", *requests) == first


def test_srpt_has_a_largest_handicap() -> None:
    endless = request("endless", 10, 100_000, arrival=0.0)
    late = request("late", 1, 1, arrival=SRPT_MAX_SECONDS)
    policies, _ = parse_policy("srpt")
    assert policies[0](endless) == SRPT_MAX_SECONDS
    assert policies[0](late) + late.arrival > policies[0](endless)


def test_policies_combine() -> None:
    requests = [
        request("low short", 1, 1, priority=9),
        request("high long", 60, 60, priority=0),
        request("high short", 1, 1, priority=0),
    ]
    subject = scheduler(policy="priority,srpt", max_num_seqs=1)
    for each in requests:
        subject.add(each)
    assert admitted(subject) == ["high short", "high long", "low short"]


def test_an_endless_stream_of_urgent_requests_does_not_starve_the_last() -> None:
    """The low one starts within its bound while urgent ones keep coming, one a second."""
    subject = scheduler(policy="priority", max_num_seqs=1)
    subject.add(request("low", 1, 1, arrival=0.0, priority=9))
    started = None
    for second in range(400):
        subject.add(request(str(second), 1, 1, arrival=float(second), priority=0))
        if "low" in names(work(subject)):
            started = second
            break
    assert started is not None
    assert started == pytest.approx(9 * PRIORITY_SECONDS, abs=1.0)


def test_fair_share_follows_weights_under_steady_load() -> None:
    tenants = {"big": Tenant(weight=3.0), "small": Tenant()}
    subject = scheduler(policy="fair", max_num_seqs=1, tenants=tenants)
    for index in range(400):
        subject.add(request(f"big {index}", 4, 4, tenant="big"))
        subject.add(request(f"small {index}", 4, 4, tenant="small"))
    one_request = 4 + 2 * 4
    done: Counter[str] = Counter()
    while len(done) < 2 or done.total() < 300:
        for chunk in work(subject).chunks:
            done[chunk.request.tenant] += chunk.request.finish_reason is not None
        big, small = subject.usage.served["big"], subject.usage.served["small"]
        assert abs(big - small) <= one_request, "one tenant is further ahead than a request"
    assert done["big"] / done["small"] == pytest.approx(3.0, rel=0.05)


def test_a_tenant_that_was_idle_saves_nothing_up() -> None:
    subject = scheduler(policy="fair", max_num_seqs=1)
    for index in range(100):
        subject.add(request(f"busy {index}", 4, 4, tenant="busy"))
    for _ in range(200):
        work(subject)
    for index in range(100):
        subject.add(request(f"new {index}", 4, 4, tenant="new"))
    served: Counter[str] = Counter()
    for _ in range(80):
        served.update(name.split()[0] for name in names(work(subject)))
    assert abs(served["busy"] - served["new"]) <= 8


def test_tied_requests_with_cached_prefixes_come_first_and_nobody_is_passed_for_ever() -> None:
    subject = scheduler(blocks=400, policy="prefix", max_num_seqs=1, budget=64)
    prompt = list(range(40))
    subject.add(request("warm", 0, 1, prompt_token_ids=prompt, prefix_cache=True))
    run_out(subject)
    subject.add(request("cold", 0, 1, prompt_token_ids=[7] * 40, prefix_cache=True))
    for index in range(3 * MAX_PASSES):
        subject.add(request(str(index), 0, 1, prompt_token_ids=[*prompt, index], prefix_cache=True))
    order = admitted(subject)
    assert order[:MAX_PASSES] == [str(index) for index in range(MAX_PASSES)], "the cached ones are not preferred"
    assert order[MAX_PASSES] == "cold", "the bound on being passed over does not hold"


def test_a_request_that_came_earlier_is_no_tie() -> None:
    subject = scheduler(blocks=400, policy="prefix", max_num_seqs=1, budget=64)
    prompt = list(range(40))
    subject.add(request("warm", 0, 1, prompt_token_ids=prompt, prefix_cache=True))
    run_out(subject)
    subject.add(request("cold", 0, 1, prompt_token_ids=[7] * 40, prefix_cache=True, arrival=0.0))
    subject.add(request("hit", 0, 1, prompt_token_ids=[*prompt, 1], prefix_cache=True, arrival=2.0))
    assert admitted(subject) == ["cold", "hit"]


def test_tenants_at_their_limits_wait_and_others_go_on() -> None:
    tenants = {"a": Tenant(max_running=1), "b": Tenant(max_kv_share=0.25)}
    subject = scheduler(blocks=16, max_num_seqs=8, tenants=tenants)
    for index in range(2):
        subject.add(request(f"a{index}", 1, 3, tenant="a"))
        subject.add(request(f"b{index}", 9, 1, tenant="b"))  # 3 blocks each: two would be 6 of 16
        subject.add(request(f"c{index}", 1, 3, tenant="c"))
    assert sorted(names(work(subject))) == ["a0", "b0", "c0", "c1"]
    assert sorted(admitted(subject)) == ["a0", "a1", "b1", "c0", "c1"]


def test_limits_that_a_request_alone_exceeds_refuse_it() -> None:
    with pytest.raises(RequestError, match="the prompt has 9 tokens; tenant 'a' may send 8"):
        Tenant(max_prompt_tokens=8).check(request("r", 9, 1, tenant="a"), 3, 16)
    with pytest.raises(RequestError, match=r"needs 5 KV blocks; tenant 'a' may hold 4 \(max_kv_share 0.25 of 16\)"):
        Tenant(max_kv_share=0.25).check(request("r", 17, 1, tenant="a"), 5, 16)
    for settings in ({"max_running": 0}, {"max_kv_share": 0.0}, {"max_kv_share": float("nan")}, {"weight": 0.0}):
        with pytest.raises(ConfigError):
            Tenant(**settings)


@pytest.mark.parametrize("priority", [-1, 10, 50])
def test_c8_a_priority_out_of_range_is_refused(priority: int) -> None:
    with pytest.raises(RequestError, match=f"priority is {priority}; it must be 0, the soonest, to 9"):
        RequestOptions(priority=priority)


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ConfigError, match="'lifo' is none of fcfs, priority, srpt, fair, prefix"):
        parse_policy("fair,lifo")
    with pytest.raises(ConfigError, match="policy is empty"):
        parse_policy(" , ")


def test_order_holds_far_behind_the_front_and_after_aborts() -> None:
    subject = scheduler(policy="srpt", max_num_seqs=1, budget=128)
    requests = [request(str(n), 1 + (n * 37) % 101, 1) for n in range(101)]
    for each in requests:
        subject.add(each)
    taken_back = requests[: 3 * FRONT]
    for each in taken_back:
        subject.finish(each)
    left = [each for each in requests if each not in taken_back]
    assert len(subject.waiting) == len(left)
    expected = [each.request_id for each in sorted(left, key=lambda each: len(each.prompt_token_ids))]
    assert admitted(subject) == expected
