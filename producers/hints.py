"""Celery as headrace uses it: hints that wake workers, and tasks for plain Celery applications.

A hint says "there is work for this model" and nothing else. The work is in the ledger, so a hint that is
lost, doubled or late costs at most the workers' polling interval.

A hint costs everybody more than the job's record does. So none is sent where the script that wrote the record has
reached a worker (:meth:`headrace.producers.keys.Keys.arrivals`), nor while a message waits in the queue's list after
the record was written: whoever takes that one looks for work afterwards, and finds this job as well.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from .celery_broker import celery_connection
from .keys import DEFAULT_QUEUE
from .ledger import Submission, Submitted

logger = logging.getLogger(__name__)

HINT_TASK = "headrace.hint"
GENERATE_TASK = "headrace.generate"
VISIBILITY_SECONDS = 60
"""A Celery message whose holder stopped refreshing it for this long is delivered again."""
UNACKED_INDEX = "headrace:unacked_index"
"""kombu's set of unacknowledged deliveries by age, under which it restores those that are too old."""


def celery_queue(queue: str = DEFAULT_QUEUE) -> str:
    """Name of the Celery queue for a model's queue; the default one is ``headrace``."""
    return "headrace" if queue == DEFAULT_QUEUE else f"headrace.{queue}"


def celery_settings(url: str) -> dict[str, Any]:
    """Settings that producers and workers share: JSON only, short visibility, nothing kept for ever."""
    where = celery_connection(url)
    return {
        **where,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        "task_default_queue": celery_queue(),
        "task_default_priority": 0,
        "result_expires": 86_400,
        "broker_transport_options": {
            **where["broker_transport_options"],
            "visibility_timeout": VISIBILITY_SECONDS,
            # kombu restores by the shortest timeout of all who share these keys: with its own, a headrace worker
            # does not have other applications' long tasks delivered twice.
            "unacked_key": "headrace:unacked",
            "unacked_index_key": UNACKED_INDEX,
            "unacked_mutex_key": "headrace:unacked_mutex",
        },
        "broker_connection_retry_on_startup": True,
        "task_ignore_result": False,
        "timezone": "UTC",
    }


def unheard(jobs: Sequence[Submission], replies: Sequence[Submitted]) -> set[str]:
    """The queues of jobs of which no worker has heard: for them a hint is due."""
    pairs = list(zip(jobs, replies, strict=True))
    return {job.queue for job, _ in pairs} - {job.queue for job, reply in pairs if reply is Submitted.HEARD}


class HintSender:
    """Sends hints. Celery is imported with the first one, so that importing headrace stays quick.

    Args:
        url: of the Redis server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._app: Any = None

    def send(self, queue: str) -> None:
        """Wake a worker that serves ``queue``; where the broker is away, one finds the job by itself."""
        from kombu.exceptions import OperationalError  # noqa: PLC0415

        if self._app is None:
            from celery import Celery  # noqa: PLC0415

            self._app = Celery("headrace.producers", set_as_current=False)
            self._app.conf.update(celery_settings(self._url))
        try:
            self._app.send_task(HINT_TASK, queue=celery_queue(queue), ignore_result=True)
        except OperationalError as error:
            logger.warning("no hint was sent (%s); workers find the job within a second all the same", str(error)[:200])

    def close(self) -> None:
        """Drop Celery's connections."""
        if self._app is not None:
            self._app.close()
