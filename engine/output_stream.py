"""From one answer's tokens to its text, and the ends that only the text shows."""

from __future__ import annotations

from collections.abc import Sequence

from .detokenizer import Detokenizer, TokenDecoder
from .outputs import TokenLogprob
from .request import FinishReason, Request
from .sampler import RankedTokens
from .stop_strings import StopStrings


class OutputStream:
    """Takes an answer's tokens as they come, turns them into text, and ends the answer at a stop text.

    Args:
        request: whose tokens; its finish reason is set where a token or a stop text ends it.
        decoder: of the model's tokenizer.
        shown_special_ids: special tokens that have text in this answer although others are skipped.
    """

    def __init__(self, request: Request, decoder: TokenDecoder, shown_special_ids: frozenset[int]) -> None:
        params = request.params
        self.request = request
        self._decoder = decoder
        hidden = decoder.special_ids - shown_special_ids if params.skip_special_tokens else frozenset()
        self._detokenizer = Detokenizer(decoder, request.prompt_token_ids, hidden)
        self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output)

    def take(self, token_id: int) -> str:
        """Give the request one more token; returns the text that is certain after it."""
        request, stops = self.request, self._stops
        request.append_token(token_id)
        look = len(request.output_token_ids) >= request.params.min_tokens
        if request.stop_token_id is None or request.params.include_stop_str_in_output:
            text = stops.add(self._detokenizer.add([token_id]), look=look)
        else:
            text = ""
        if request.finish_reason is not None and stops.found is None:
            text += stops.add(self._detokenizer.finish(), look=look)
            if stops.found is None:
                text += stops.finish()
        if stops.found is not None and request.stop_token_id is None:
            request.finish_reason = FinishReason.STOP
        return text

    @property
    def stop_reason(self) -> str | int | None:
        """The user's stop text or stop token that ended the answer."""
        request = self.request
        if self._stops.found is not None:
            return self._stops.found
        if request.stop_token_id is None or request.stop_token_id in request.eos_token_ids:
            return None
        text = self._decoder.token_text(request.stop_token_id)
        return text if text in request.params.stop else request.stop_token_id


def describe_tokens(decoder: TokenDecoder, ranked: Sequence[RankedTokens]) -> tuple[TokenLogprob, ...]:
    """Log-probabilities with the tokens' texts."""

    def described(token_id: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        text, encoded = decoder.token_text(token_id), decoder.token_bytes(token_id)
        return TokenLogprob(token_id, text, encoded, logprob, top)

    return tuple(
        described(token_id, logprob, tuple(described(*one) for one in likeliest))
        for token_id, logprob, likeliest in ranked
    )
