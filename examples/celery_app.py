"""A plain Celery application that has headrace write the text in the middle of a chain.

    celery -A examples.celery_app worker --pool solo --queues mail      (one terminal)
    python examples/celery_app.py                                       (another)

The application's own tasks run on its own Celery worker; only ``headrace.generate`` goes to a headrace worker.
Both use the same Redis: HEADRACE_REDIS_URL, or localhost.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, chain
from headrace.producers.tasks import generate

REDIS_URL = os.environ.get("HEADRACE_REDIS_URL", "redis://localhost:6379/0")

app = Celery("mail", broker=REDIS_URL, backend=REDIS_URL)
app.conf.task_default_queue = "mail"
# Values that headrace's workers use too; all programs on one broker should agree on them.
app.conf.task_default_priority = 0
app.conf.broker_transport_options = {"visibility_timeout": 60}


@app.task(name="mail.send")  # type: ignore[untyped-decorator]
def send(result: dict[str, Any], recipient: str) -> str:
    """Take what ``headrace.generate`` returned; a real application would send it."""
    return f"To {recipient}: {' '.join(result['text'].split())}"


def main() -> None:
    """Generate a greeting, then hand it to this application's own task."""
    greeting = generate.s("Write a one-sentence birthday greeting for a gardener.", max_tokens=40, temperature=0)
    # In a chain, the worker that ends one step sends the next. headrace's worker does not know this application's
    # routes, so the step names its queue.
    mail = send.s("rosa@example.com").set(queue="mail")
    print(chain(greeting, mail)().get(timeout=120))


if __name__ == "__main__":
    main()
