"""The loop that turns requests into tokens."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoTokenizer

from .assembly import build_scheduler
from .batch import build_batch
from .block_pool import BlockPool
from .calibration import DEFAULT_COST, calibrate
from .config import EngineConfig
from .detokenizer import Detokenizer, TokenDecoder
from .errors import ModelError, RequestError, first_line
from .hf_model import TransformersModel
from .kv_cache import KVCache
from .kv_tiers import SwapSpace, poison
from .loader import resolve_model
from .model_protocol import Model
from .policy import PRIORITIES
from .prefix_cache import namespace_root
from .prompt_encoder import PromptEncoder
from .request import FinishReason, Request
from .resolve import eos_token_ids, max_model_len, resolve_device, resolve_dtype
from .sampler import sample
from .sampling_params import SamplingParams
from .scheduler import StepPlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RequestOutput:
    """What one step added to one request."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    """None while the request goes on."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens that the prefix cache held."""
    queue_seconds: float
    """From arrival in the engine to the first step."""
    ttft_seconds: float
    """From arrival in the engine to the first token."""
    error: str | None = None


@dataclass(frozen=True)
class RequestOptions:
    """How a request is treated among others; nothing of it changes its tokens.

    Raises:
        RequestError: where a value is out of range.
    """

    priority: int = 0
    """0, the soonest, to 9."""
    tenant: str = ""
    prefix_cache: bool = True
    """Whether blocks may be shared with requests that begin alike."""
    cache_salt: str = ""
    """Blocks are shared only among requests of one tenant with the same salt."""

    def __post_init__(self) -> None:
        if not 0 <= self.priority < PRIORITIES:
            allowed = f"0, the soonest, to {PRIORITIES - 1}"
            raise RequestError(f"priority is {self.priority}; it must be {allowed}", param="priority")


DEFAULT_OPTIONS = RequestOptions()


@dataclass
class EngineStats:
    """Counters since the engine's start."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    peak_running: int = 0
    """Most requests computed in one step."""
    finished: dict[str, int] = field(default_factory=lambda: {reason.value: 0 for reason in FinishReason})


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
        self._model = model
        # The encoder may be used from another thread, and fast tokenizers refuse to be borrowed twice.
        self._decoder = TokenDecoder(copy.deepcopy(tokenizer))
        self._eos_token_ids = eos_token_ids(model, tokenizer)
        self._tenants = config.tenants
        self._prefix_cache = config.prefix_cache
        self._requests: dict[str, Request] = {}
        self._detokenizers: dict[str, Detokenizer] = {}

    @classmethod
    def load(cls, config: EngineConfig) -> Engine:
        """Load a model and make an engine for it.

        Raises:
            ModelError: where there is no such model, or it cannot be run.
            ConfigError: where the settings do not fit it.
        """
        source = resolve_model(config.model)
        device = resolve_device(config.device)
        model = TransformersModel(source.path, resolve_dtype(config, device), device)
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
        return self.scheduler.has_work

    def add(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Queue a request.

        ``max_tokens`` above the room left is clamped to it; such a request ends with ``length``.

        Raises:
            RequestError: where the id is in use, the prompt is no sequence of this model's tokens, or it can never
                fit, by the memory there is or by its tenant's limits.
        """
        if request_id in self._requests:
            raise RequestError(f"the request id {request_id} is in use", code="duplicate_request")
        prompt = self.encoder.encode_ids(prompt_token_ids)
        prompt_len, capacity = len(prompt), self.pool.capacity_tokens
        if prompt_len >= self.max_model_len:
            asked = "" if params.max_tokens is None else f" (max_tokens {params.max_tokens})"
            raise RequestError(
                f"the prompt has {prompt_len} tokens{asked}; with at least one token of output, the context limit "
                f"of {self.max_model_len} leaves room for {self.max_model_len - 1}",
                code="context_length_exceeded",
            )
        if prompt_len > capacity:
            raise RequestError(
                f"the prompt has {prompt_len} tokens and the KV cache holds {capacity} "
                f"({self.pool.num_blocks} blocks of {self.pool.block_size}); give the worker more "
                "kv_cache_memory or shorten the prompt",
                code="kv_capacity_exceeded",
            )
        room = min(self.max_model_len, capacity + 1) - prompt_len
        request = Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=params,
            max_tokens=min(params.max_tokens or room, room),
            eos_token_ids=self._eos_token_ids,
            priority=options.priority,
            tenant=options.tenant,
            prefix_cache=options.prefix_cache and self._prefix_cache,
            cache_root=namespace_root(self.name, tenant=options.tenant, salt=options.cache_salt),
        )
        if limits := self._tenants.get(options.tenant):
            limits.check(request, self.pool.blocks_for(request.max_kv_tokens), self.pool.num_blocks)
        self._requests[request_id] = request
        self._detokenizers[request_id] = Detokenizer(self._decoder, prompt)
        self.scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """Drop a request in any state and free what it holds.

        Returns:
            Whether it was there; an unknown or finished request is no error.
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        request.finish_reason = FinishReason.ABORT
        self._forget(request)
        return True

    def step(self) -> list[RequestOutput]:
        """Compute one step and return what it added, for each request that got a token or ended.

        An exception means that the model failed, not a request; the engine is of no use after it.
        """
        plan = self.scheduler.schedule()
        self._move_blocks(plan)
        if not plan.chunks:  # nothing waits, or all that may run is on its way back from the swap space
            self.scheduler.commit(plan)
            return []
        now = time.monotonic()
        for chunk in plan.chunks:
            if chunk.request.first_scheduled is None:
                chunk.request.first_scheduled = now
                self.stats.prompt_tokens += len(chunk.request.prompt_token_ids)
        batch = build_batch(plan, self.pool.block_size, self._model.device)
        logits = self._model.forward(batch, self.kv_cache)
        tokens = sample(logits, batch.sampled) if batch.sampled else []
        self.scheduler.commit(plan)
        self.stats.steps += 1
        self.stats.generation_tokens += sum(token is not None for token in tokens)
        self.stats.peak_running = max(self.stats.peak_running, len(plan.chunks))
        return [self._take_token(r, token) for r, token in zip(batch.sampled, tokens, strict=True)]

    def _move_blocks(self, plan: StepPlan) -> None:
        """Carry out the plan's copies, in the order that the plan means."""
        self.swap.swap_out(plan)
        if self.pool.recycled:
            poison(self.kv_cache, self.pool.recycled)
            self.pool.recycled.clear()
        self.swap.swap_in(plan)

    def _take_token(self, request: Request, token: int | None) -> RequestOutput:
        """Add a drawn token to its request, or end the request where its logits were not finite."""
        detokenizer = self._detokenizers[request.request_id]
        text = ""
        if token is None:
            request.finish_reason = FinishReason.ERROR
            request.error = "the model computed logits that are not finite"
        else:
            request.first_token = request.first_token or time.monotonic()
            request.append_token(token)
            if request.finish_reason is not FinishReason.STOP:
                text = detokenizer.add([token])
        if request.finish_reason is not None:
            text += detokenizer.finish()
            self._forget(request)
        return RequestOutput(
            request_id=request.request_id,
            token_ids=() if token is None else (token,),
            text=text,
            finish_reason=request.finish_reason,
            prompt_tokens=len(request.prompt_token_ids),
            completion_tokens=len(request.output_token_ids),
            cached_tokens=request.num_cached_tokens or 0,
            queue_seconds=(request.first_scheduled or request.arrival) - request.arrival,
            ttft_seconds=(request.first_token or request.arrival) - request.arrival,
            error=request.error,
        )

    def _forget(self, request: Request) -> None:
        """Free what a finished request holds."""
        assert request.finish_reason is not None
        self.scheduler.finish(request)
        self.stats.finished[request.finish_reason.value] += 1
        del self._requests[request.request_id]
        del self._detokenizers[request.request_id]
