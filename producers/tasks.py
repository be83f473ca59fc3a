"""headrace from a plain Celery application.

The application needs ``headrace`` without its worker parts, and the Redis URL of headrace's workers as its
broker and result backend::

    app = Celery(broker="redis://localhost/0", backend="redis://localhost/0")

    from headrace.producers.tasks import generate
    generate.delay("Name three rivers.", max_tokens=50).get()["text"]
    chain(generate.s("Write a haiku."), publish.s().set(queue="celery"))()

(the worker sends the next step of a chain, so that step must name its queue) or, without importing headrace::

    app.send_task("headrace.generate", ["Name three rivers."], {"max_tokens": 50}, queue="headrace")

The task's id is the job's id, so that :class:`headrace.producers.Client` can stream, watch or cancel it.
"""

from __future__ import annotations

from typing import Any

from celery import shared_task

from .hints import GENERATE_TASK, celery_queue


@shared_task(name=GENERATE_TASK, queue=celery_queue(), serializer="json", priority=0)  # type: ignore[untyped-decorator]
def generate(request: Any = None, **parameters: Any) -> dict[str, Any]:  # noqa: ARG001  # the worker reads them
    """Generate text on a headrace worker.

    Args:
        request: see :func:`headrace.producers.records.request_from`.
        parameters: sampling parameters by OpenAI's names; where tenants are kept apart, ``tenant`` and
            ``tenant_token`` too. The token is in the message, as Redis holds it until the job has ended, and goes
            neither into the job's record nor into a log.

    Returns:
        The fields of :class:`headrace.producers.JobResult`, with the first answer's ``text`` and ``finish_reason``.

    Raises:
        JobFailed: where the job ended without an answer, with the reason.
    """
    raise RuntimeError("headrace.generate runs on headrace workers only; start one with `headrace worker`")
