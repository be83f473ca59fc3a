"""Going on with answers that another attempt began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .errors import RequestError
from .output_stream import OutputStream
from .request import FinishReason

CANNOT_RESUME = "cannot_resume"
"""Code of the refusal of tokens that do not lead anywhere here; the request can still be answered from its start."""


def replay(streams: Mapping[int, OutputStream], published: Mapping[int, Sequence[int]], *, vocab_size: int) -> None:
    """Give answers the tokens that they have already.

    Text, stop texts, penalties and grammars depend on an answer's tokens alone, taken one by one; so after this
    they stand where the earlier attempt left them, half characters and held-back text included. The text of these
    tokens is known to whoever published it and is not returned.

    Args:
        streams: all answers of a request, none of them begun, by index.
        published: the tokens of each answer that has any, by index.
        vocab_size: of the model.

    Raises:
        RequestError: with the code :data:`CANNOT_RESUME`, where the tokens cannot have come from these answers.
    """
    for index, token_ids in published.items():
        stream = streams.get(index)
        if stream is None:
            raise _refusal(f"answer {index} was not asked for")
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise _refusal(f"token {token_id} is not one of this model's")
            if stream.request.finish_reason is not None:
                raise _refusal(f"answer {index} ends before its last token")
            stream.take(token_id)
        if stream.request.finish_reason is FinishReason.ERROR:
            raise _refusal(f"answer {index} breaks its grammar")


def _refusal(reason: str) -> RequestError:
    return RequestError(f"the published tokens cannot be continued: {reason}", code=CANNOT_RESUME)
