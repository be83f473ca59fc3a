"""The loop that turns requests into tokens."""

from __future__ import annotations

import copy
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import AutoTokenizer

from ..kernels import copy_within
from .admission import output_room
from .assembly import build_scheduler
from .batch import ForwardBatch, build_batch
from .block_pool import BlockPool
from .calibration import DEFAULT_COST, calibrate
from .config import EngineConfig
from .detokenizer import TokenDecoder
from .errors import ModelError, RequestError, first_line
from .kv_cache import KVCache
from .kv_tiers import SwapSpace, poison
from .loader import resolve_model
from .model import load_model
from .model_protocol import Model
from .output_stream import OutputStream, describe_tokens
from .outputs import DEFAULT_OPTIONS, EngineStats, RequestOptions, RequestOutput, TokenLogprob
from .prefix_cache import namespace_root
from .prompt_encoder import PromptEncoder
from .request import FinishReason, Request
from .request_group import RequestGroup
from .resolve import eos_token_ids, max_model_len, resolve_device, resolve_dtype
from .resumption import CANNOT_RESUME, replay
from .sampler import Draw, Sampler, rank_tokens
from .sampling_params import SamplingParams
from .step_plan import StepPlan
from .structure import StructureCompiler, StructureState
from .token_ids import check_token_ids
from .token_rules import build_token_rules
from .tool_calls import tool_format_of

logger = logging.getLogger(__name__)


class Engine:
    """Continuous batching over one model. Not thread-safe: one thread adds, aborts and steps.

    Args:
        model: computes logits.
        tokenizer: a tokenizer of transformers.
        config: settings.
        name: what the model is called.

    Raises:
        ConfigError: where the settings do not fit the model.
    """

    def __init__(self, model: Model, tokenizer: Any, config: EngineConfig, name: str) -> None:
        self.name = name
        self.max_model_len = max_model_len(config, model)
        self.kv_cache = KVCache(
            model.geometry,
            memory=config.kv_cache_memory,
            block_size=config.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=config.max_num_seqs,
            dtype=model.dtype,
            device=model.device,
        )
        self.pool = BlockPool(self.kv_cache.num_blocks, config.block_size)
        self.swap = SwapSpace(self.kv_cache, config.swap_memory)
        self.scheduler = build_scheduler(
            self.pool,
            self.swap.pool,
            policy=config.policy,
            tenants=config.tenants,
            cost=DEFAULT_COST,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self.pool.recycled = [] if config.debug else None
        self.stats = EngineStats()
        self.encoder = PromptEncoder(tokenizer, model.vocab_size)
        self.tool_format = tool_format_of(tokenizer)
        self._model = model
        # The encoder may be used from another thread, and fast tokenizers refuse to be borrowed twice.
        self._decoder = TokenDecoder(copy.deepcopy(tokenizer))
        self._eos_token_ids = eos_token_ids(model, tokenizer)
        self._tenants = config.tenants
        self._prefix_cache = config.prefix_cache
        self.structures = StructureCompiler(tokenizer, model.vocab_size, self._eos_token_ids)
        self._sampler = Sampler()
        self._groups: dict[str, RequestGroup] = {}
        self._ended_on_replay: list[RequestOutput] = []
        self.on_begun: Callable[[list[str]], None] | None = None
        """Called in each step, before anything is computed, with the requests that the step begins."""

    @classmethod
    def load(cls, config: EngineConfig) -> Engine:
        """Load a model and make an engine for it.

        Raises:
            ModelError: where there is no such model, or it cannot be run.
            ConfigError: where the settings do not fit it.
        """
        source = resolve_model(config.model)
        device = resolve_device(config.device)
        model = load_model(source.path, resolve_dtype(config, device), device, config.quantization)
        try:
            tokenizer = AutoTokenizer.from_pretrained(source.path)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"cannot load the tokenizer of {source.path}: {first_line(error)}") from error
        engine = cls(model, tokenizer, config, source.name)
        cost = calibrate(model, engine.kv_cache, engine.swap, config.block_size)
        engine.scheduler.cost = cost
        logger.info(
            "pausing a request costs %.2f ms and %.3f ms a block to swap, or %.2f ms a token to compute again",
            2e3 * cost.swap_fixed_seconds,
            2e3 * cost.swap_seconds_per_block,
            1e3 * cost.seconds_per_token,
        )
        return engine

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return self.scheduler.has_work or bool(self._ended_on_replay)

    def add(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        options: RequestOptions = DEFAULT_OPTIONS,
        published: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Queue a request.

        ``max_tokens`` above the room left is clamped to it; such a request ends with ``length``.

        Args:
            request_id: names it in the outputs.
            prompt_token_ids: the prompt.
            params: how tokens are chosen, and how many.
            options: how it is treated among others.
            published: tokens that its answers have from an earlier attempt, by index. They go on after these, and
                outputs hold only what is new; an answer that these tokens end has one output without a token.

        Raises:
            RequestError: where the id is in use, the prompt is no sequence of this model's tokens, a parameter names
                what the model does not have, or the request can never fit, by the memory there is or by its tenant's
                limits; with the code ``cannot_resume``, where the published tokens cannot be continued.
        """
        if request_id in self._groups:
            raise RequestError(f"the request id {request_id} is in use", code="duplicate_request")
        prompt = self.encoder.encode_ids(prompt_token_ids)
        check_token_ids("stop_token_ids", params.stop_token_ids, self._model.vocab_size)
        max_tokens = output_room(len(prompt), params.max_tokens, self.max_model_len, self.pool)
        if params.min_tokens > max_tokens:
            raise RequestError(f"min_tokens is {params.min_tokens}; there is room for {max_tokens}", param="min_tokens")
        answers = self._answers(request_id, prompt, params, max_tokens, options)
        first, *pending = answers
        if limits := self._tenants.get(options.tenant):
            limits.check(first, self.pool.blocks_for(first.max_kv_tokens), self.pool.num_blocks)
        shown = options.shown_special_ids
        streams = {answer.sample_index: OutputStream(answer, self._decoder, shown) for answer in answers}
        if published:
            self._resume(RequestGroup(first, streams), published)
            return
        first.num_pending_siblings = len(pending)
        self._groups[request_id] = RequestGroup(first, streams, pending)
        self.scheduler.add(first)

    def _resume(self, group: RequestGroup, published: Mapping[int, Sequence[int]]) -> None:
        """Queue each answer that goes on, by itself: what they share of the prompt, the prefix cache knows."""
        replay(group.streams, published, vocab_size=self._model.vocab_size)
        answers = [stream.request for stream in group.streams.values()]
        if group.first.finish_reason is not None and group.first.params.prompt_logprobs is not None:
            raise RequestError("the answer that scores the prompt has ended", code=CANNOT_RESUME)
        self._groups[group.first.request_id] = group
        for answer in answers:
            if answer.finish_reason is None:
                self.scheduler.add(answer)
            else:
                stream = group.streams.pop(answer.sample_index)
                self._ended_on_replay.append(self._output(group, stream))
        if not group.streams:
            del self._groups[group.first.request_id]

    def _answers(
        self, request_id: str, prompt: list[int], params: SamplingParams, max_tokens: int, options: RequestOptions
    ) -> list[Request]:
        """A request's answers, each with a state of its own."""
        # The text of a special token may never show, so as a stop it means the token.
        special_stops = (self._decoder.special_id(text) for text in params.stop)
        stop_ids = frozenset((*params.stop_token_ids, *(token for token in special_stops if token is not None)))
        rules = build_token_rules(
            params,
            prompt,
            stop_ids if params.ignore_eos else stop_ids | self._eos_token_ids,
            vocab_size=self._model.vocab_size,
            spellings=self._decoder.spellings,
            structure=self._start_structure(params),
        )
        cache_root = namespace_root(self.name, tenant=options.tenant, salt=options.cache_salt)

        def answer(index: int) -> Request:
            own = rules if rules is None or index == 0 else rules.for_sibling(self._start_structure(params))
            return Request(
                request_id=request_id,
                prompt_token_ids=prompt,
                params=params,
                max_tokens=max_tokens,
                eos_token_ids=self._eos_token_ids,
                stop_token_ids=stop_ids,
                sample_index=index,
                rules=own,
                priority=options.priority,
                tenant=options.tenant,
                # A prompt whose tokens are scored is computed whole.
                prefix_cache=options.prefix_cache and self._prefix_cache and params.prompt_logprobs is None,
                cache_root=cache_root,
            )

        return [answer(index) for index in range(params.n)]

    def _start_structure(self, params: SamplingParams) -> StructureState | None:
        return None if params.structure is None else self.structures.start(params.structure)

    def abort(self, request_id: str) -> bool:
        """Drop a request in any state and free what it holds.

        Returns:
            Whether it was there; an unknown or finished request is no error.
        """
        group = self._groups.get(request_id)
        if group is None:
            return False
        self._end_all(group, FinishReason.ABORT)
        return True

    def step(self) -> list[RequestOutput]:
        """Compute one step and return what it added, for each answer that got tokens or ended.

        An exception means that the model failed, not a request; the engine is of no use after it.
        """
        ended, self._ended_on_replay = self._ended_on_replay, []
        return ended + self._compute(self.scheduler.schedule())

    def _compute(self, plan: StepPlan) -> list[RequestOutput]:
        self._move_blocks(plan)
        if not plan.chunks:  # nothing waits, or all that may run is on its way back from the swap space
            self.scheduler.commit(plan)
            return []
        self._count(plan)
        batch = build_batch(plan, self.pool.block_size, self._model.device)
        logits = self._model.forward(batch, self.kv_cache)
        self.scheduler.commit(plan)
        if batch.prompt_rows:
            self._score_prompts(batch, logits[len(batch.sampled) :])
        if not batch.sampled:
            return []
        requests, rows = self._with_siblings(batch.sampled)
        positions = batch.positions[0, batch.logits_rows[rows]] + 1
        draws = self._sampler.sample(logits[rows], requests, positions)
        outputs = [self._take_draw(request, draw) for request, draw in zip(requests, draws, strict=True)]
        return [output for output in outputs if output is not None]

    def _move_blocks(self, plan: StepPlan) -> None:
        """Carry out the plan's copies, in the order that the plan means."""
        self.swap.swap_out(plan)
        copy_within(self.kv_cache.data, plan.copy)
        if self.pool.recycled:
            poison(self.kv_cache, set(self.pool.recycled) - {target for _, target in plan.copy})
            self.pool.recycled.clear()
        self.swap.swap_in(plan)

    def _count(self, plan: StepPlan) -> None:
        now = time.monotonic()
        begun = [chunk.request for chunk in plan.chunks if chunk.request.first_scheduled is None]
        for request in begun:
            request.first_scheduled = now
            if request.sample_index == 0:  # the others share its prompt
                self.stats.prompt_tokens += len(request.prompt_token_ids)
        if begun and self.on_begun is not None:
            self.on_begun([request.request_id for request in begun])
        self.stats.steps += 1
        self.stats.peak_running = max(self.stats.peak_running, len(plan.chunks))

    def _score_prompts(self, batch: ForwardBatch, logits: torch.Tensor) -> None:
        """Note how likely the tokens of prompts are whose requests ask for it."""
        targets: list[int] = []
        wanted: list[int] = []
        for request, count in batch.prompt_rows:
            first = request.num_scored_tokens + 1
            targets += request.prompt_token_ids[first : first + count]
            wanted += [request.params.prompt_logprobs or 0] * count
        ranked = rank_tokens(logits.log_softmax(dim=-1), torch.tensor(targets, device=logits.device), wanted)
        described = iter(describe_tokens(self._decoder, ranked))
        for request, count in batch.prompt_rows:
            request.num_scored_tokens += count
            self._groups[request.request_id].prompt_logprobs += itertools.islice(described, count)

    def _with_siblings(self, sampled: tuple[Request, ...]) -> tuple[tuple[Request, ...], list[int] | slice]:
        """The answers that a token is drawn for, and the row of logits of each.

        Where a prompt with several answers was just computed, the others begin here, on the first one's logits.
        """
        if not any(request.num_pending_siblings for request in sampled):
            return sampled, slice(len(sampled))  # a view: most steps copy no logits
        requests: list[Request] = []
        rows: list[int] = []
        for row, request in enumerate(sampled):
            begun = [request]
            if request.num_pending_siblings:
                pending = self._groups[request.request_id].take_pending()
                begun += [sibling for sibling in pending if self.scheduler.fork(request, sibling)]
            requests += begun
            rows += [row] * len(begun)
        return tuple(requests), rows

    def _take_draw(self, request: Request, draw: Draw) -> RequestOutput | None:
        """Add a drawn token to its answer, and those that a grammar forces after it."""
        group = self._groups.get(request.request_id)
        if group is None:
            return None  # another answer of the request failed in this step, and ended them all
        stream = group.streams[request.sample_index]
        text, before = "", len(request.output_token_ids)
        if draw.token_id is None:
            request.finish_reason, request.error = FinishReason.ERROR, draw.error
        else:
            request.first_token = request.first_token or time.monotonic()
            text = stream.take(draw.token_id)
            text += self._take_forced(stream)
        token_ids = tuple(request.output_token_ids[before:])
        self.stats.generation_tokens += len(token_ids)
        self._leave(group, request)
        logprobs = None if draw.logprobs is None else describe_tokens(self._decoder, [draw.logprobs])
        return self._output(group, stream, token_ids, text, logprobs)

    def _output(
        self,
        group: RequestGroup,
        stream: OutputStream,
        token_ids: tuple[int, ...] = (),
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] | None = None,
    ) -> RequestOutput:
        request = stream.request
        return RequestOutput(
            request_id=request.request_id,
            token_ids=token_ids,
            text=text,
            finish_reason=request.finish_reason,
            prompt_tokens=len(request.prompt_token_ids),
            completion_tokens=len(request.output_token_ids),
            cached_tokens=group.first.num_cached_tokens or 0,
            queue_seconds=(group.first.first_scheduled or request.arrival) - request.arrival,
            ttft_seconds=(request.first_token or request.arrival) - request.arrival,
            error=request.error,
            index=request.sample_index,
            finished=not group.streams,
            stop_reason=stream.stop_reason if request.finish_reason is FinishReason.STOP else None,
            logprobs=logprobs,
            prompt_logprobs=group.take_prompt_logprobs() if request is group.first else None,
        )

    def _take_forced(self, stream: OutputStream) -> str:
        """Add the tokens that the answer's grammar leaves no choice about; returns their text."""
        request, text = stream.request, ""
        if request.finish_reason is None and request.rules is not None:
            for token_id in request.rules.forced_tokens():
                text += stream.take(token_id)
                self.stats.forced_tokens += 1
                if request.finish_reason is not None:
                    break
        return text

    def _leave(self, group: RequestGroup, request: Request) -> None:
        """Free what an answer holds that has ended; one that failed ends the others of its request."""
        if request.finish_reason is None:
            return
        if request.finish_reason is FinishReason.ERROR:
            self._end_all(group, FinishReason.ERROR)
            return
        self._end(group, request)
        if not group.streams:
            del self._groups[request.request_id]

    def _end_all(self, group: RequestGroup, reason: FinishReason) -> None:
        for stream in list(group.streams.values()):
            stream.request.finish_reason = reason
            self._end(group, stream.request)
        del self._groups[group.first.request_id]

    def _end(self, group: RequestGroup, request: Request) -> None:
        assert request.finish_reason is not None
        self.stats.finished[request.finish_reason.value] += 1
        del group.streams[request.sample_index]
        if request not in group.pending:
            self.scheduler.finish(request)
