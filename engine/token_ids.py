"""Token ids that users name: only those that the model has."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import RequestError


def check_token_ids(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Refuse ids that the model does not have.

    Raises:
        RequestError: naming the id and the limit.
    """
    for token_id in token_ids:
        if not (type(token_id) is int and 0 <= token_id < vocab_size):
            raise RequestError(
                f"{param} holds the token id {token_id!r}; this model's ids are 0 to {vocab_size - 1}", param=param
            )
