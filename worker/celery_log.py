"""Keeps what messages say out of Celery's log: it quotes those that it cannot use, prompts and tokens and all."""

from __future__ import annotations

import logging

from celery.worker.consumer import consumer

_QUOTING = frozenset(
    [consumer.UNKNOWN_FORMAT, consumer.UNKNOWN_TASK_ERROR, consumer.INVALID_TASK_ERROR, consumer.MESSAGE_DECODE_ERROR]
)


class WithoutContents(logging.Filter):
    """Says of a discarded message only why it was discarded."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass; one that quotes a message is written anew."""
        if record.msg in _QUOTING:
            reason = _reason(record)
            record.msg, record.args = "a Celery message was discarded: %s", (reason,)
            record.exc_info = record.exc_text = None
        return True


def _reason(record: logging.LogRecord) -> str:
    if record.msg == consumer.UNKNOWN_TASK_ERROR:
        return "headrace has no task of its name"
    if record.msg == consumer.UNKNOWN_FORMAT:
        return "it is no task"
    error = record.exc_info[1] if record.exc_info else None
    return "it cannot be read" if error is None else type(error).__name__


def keep_contents_out() -> None:
    """Filter the log of Celery's consumer; doing so twice is harmless."""
    logger = logging.getLogger(consumer.__name__)
    if not any(isinstance(one, WithoutContents) for one in logger.filters):
        logger.addFilter(WithoutContents())
