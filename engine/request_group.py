"""One user's request: a prompt, and the answers that belong to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .output_stream import OutputStream
from .outputs import TokenLogprob
from .request import Request


@dataclass(eq=False)
class RequestGroup:
    """The answers of one request.

    The first is computed from the prompt on; the others begin on its blocks once the prompt is computed.

    Attributes:
        first: the first answer, whose prompt is computed.
        streams: the answers that have not ended, by index.
        pending: those of them that have not begun.
        prompt_logprobs: of the prompt's tokens from the second on, as far as they are known; none once reported.
    """

    first: Request
    streams: dict[int, OutputStream]
    pending: list[Request] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_reported: bool = False

    def take_pending(self) -> list[Request]:
        """The answers that begin now; they are pending no more."""
        pending, self.pending = self.pending, []
        self.first.num_pending_siblings = 0
        return pending

    def take_prompt_logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """What the request wants to know of its prompt, once; None where it does not, or was told already."""
        if self.first.params.prompt_logprobs is None or self.prompt_reported:
            return None
        self.prompt_reported = True
        return tuple(self.prompt_logprobs)
