"""How one request's tokens are chosen and when it ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .errors import RequestError
from .structure import Structure

SEED_LIMIT = 1 << 64
MAX_SAMPLES = 128
MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_BIAS = 100.0


@dataclass(frozen=True)
class SamplingParams:
    """Sampling settings of one request.

    Raises:
        RequestError: where a value is out of range or of another type. The checks are written so that NaN fails
            them.
    """

    max_tokens: int | None = None
    """Most tokens to generate; None, or more than the room left, means the room left."""
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    """Keep the likeliest tokens whose probabilities sum to this."""
    top_k: int = 0
    """Keep this many of the likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this likely, relative to the likeliest."""
    seed: int = 0
    """Key of the noise; equal seeds give equal tokens."""
    n: int = 1
    """Independent answers to the same prompt; the noise of each is keyed by its index too."""
    ignore_eos: bool = False
    """Go on past end-of-sequence tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer, which is cut before them."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer, beside the model's own end-of-sequence tokens."""
    include_stop_str_in_output: bool = False
    """Keep the text or token that ended the answer."""
    min_tokens: int = 0
    """No end-of-sequence token, stop token or stop text counts before so many tokens."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the output holds."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once for each time that the output holds it."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens that prompt or output hold."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens."""
    bad_words: tuple[str, ...] = ()
    """Texts that the answer must not hold, as the model's tokenizer spells them."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these tokens; None allows all."""
    logprobs: int | None = None
    """Report log-probabilities: of the chosen tokens, and of so many of the likeliest."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    skip_special_tokens: bool = True
    """Whether special tokens have no text."""
    structure: Structure | None = None
    """A grammar that the whole answer follows."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1)
        self._check_distribution()
        self._check_penalties()
        _check_integer("n", self.n, 1, MAX_SAMPLES)
        _check_integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _refusal("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), 0, MAX_LOGPROBS)
        self._check_tokens()
        self._check_texts()

    def _check_distribution(self) -> None:
        _check_number("temperature", self.temperature, 0, 2)
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise _refusal("top_p", self.top_p, "a number above 0 and at most 1")
        if not (_is_integer(self.top_k) and self.top_k >= 0):
            raise _refusal("top_k", self.top_k, "an integer >= 0 (0 keeps all tokens)")
        _check_number("min_p", self.min_p, 0, 1)
        if not (_is_integer(self.seed) and 0 <= self.seed < SEED_LIMIT):
            raise _refusal("seed", self.seed, "an integer between 0 and 2^64 - 1")

    def _check_penalties(self) -> None:
        _check_number("presence_penalty", self.presence_penalty, -2, 2)
        _check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_number("repetition_penalty", self.repetition_penalty, 0.01, 100)

    def _check_tokens(self) -> None:
        for token_id, bias in self.logit_bias.items():
            if not (_is_integer(token_id) and _is_number(bias) and -MAX_BIAS <= bias <= MAX_BIAS):
                raise _refusal(
                    "logit_bias", {token_id: bias}, f"token ids with numbers between -{MAX_BIAS:g} and {MAX_BIAS:g}"
                )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise _refusal("allowed_token_ids", self.allowed_token_ids, "at least one token id")

    def _check_texts(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise _refusal("stop", f"a list of {len(self.stop)}", f"at most {MAX_STOPS} texts")
        for name in ("stop", "bad_words"):
            if not _are_texts(getattr(self, name)):
                raise _refusal(name, getattr(self, name), "texts that are not empty")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, so that no noise is needed."""
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Whether any penalty is set."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _are_texts(values: Iterable[object]) -> bool:
    return not isinstance(values, str) and all(isinstance(value, str) and value for value in values)


def _check_integer(name: str, value: int, least: int, most: int | None = None) -> None:
    if not (_is_integer(value) and value >= least and (most is None or value <= most)):
        allowed = f"an integer >= {least}" if most is None else f"an integer between {least} and {most}"
        raise _refusal(name, value, allowed)


def _check_number(name: str, value: float, least: float, most: float) -> None:
    if not (_is_number(value) and least <= value <= most):
        raise _refusal(name, value, f"a number between {least} and {most}")


def _refusal(name: str, value: object, allowed: str) -> RequestError:
    return RequestError(f"{name} is {value!r}; it must be {allowed}", param=name)
