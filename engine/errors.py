"""What the engine refuses, and why: each error says what is wrong and what is allowed."""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """The first line of an error's message: libraries go on for paragraphs."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


class EngineError(Exception):
    """Base of the errors that the engine raises on purpose."""


class ConfigError(EngineError):
    """A setting of the engine is impossible on this machine or for this model."""


class ModelError(EngineError):
    """A model cannot be found, read, or run."""


class RequestError(EngineError):
    """A request is refused; its neighbours are not affected.

    Attributes:
        message: one sentence for the person who wrote the request.
        code: OpenAI's machine-readable reason, for example ``context_length_exceeded``.
        param: the parameter at fault, where there is one.
    """

    def __init__(self, message: str, *, code: str = "invalid_value", param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
