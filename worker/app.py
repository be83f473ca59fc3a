"""The Celery application of a worker."""

from __future__ import annotations

import warnings
from typing import Any

from celery import Celery, Task
from celery.apps.worker import Worker as CeleryWorker
from celery.exceptions import SecurityWarning
from celery.signals import worker_shutting_down
from kombu import Queue

from ..producers.errors import JobFailed
from ..producers.hints import GENERATE_TASK, HINT_TASK, celery_queue, celery_settings
from ..producers.results import JobResult, JobState
from .broker import WorkerAMQP
from .celery_log import keep_contents_out
from .service import WorkerService


class HeadraceApp(Celery):  # type: ignore[misc]
    """Celery over one :class:`WorkerService`.

    Attributes:
        service: what hosts the engine.
        finished: results of held tasks whose tracer is about to run, by task id; the pool puts them there and
            the task's body takes them.
    """

    amqp_cls = WorkerAMQP

    def __init__(self, service: WorkerService) -> None:
        super().__init__("headrace.worker", set_as_current=False)
        self.service = service
        self.finished: dict[str, JobResult] = {}
        self.conf.update(
            celery_settings(service.settings.redis_url),
            worker_pool="headrace.worker.pool:EnginePool",
            # Messages that may be held at once; hints are done at once and do not count.
            worker_concurrency=service.max_inflight,
            worker_prefetch_multiplier=1,
            task_acks_late=True,
            task_queues=[Queue(celery_queue(queue)) for queue in service.queues],
            # What a chain or chord goes on with is somebody else's task: it goes where Celery's users expect it.
            task_default_queue="celery",
            worker_hijack_root_logger=False,
        )

        def generate(task: Task, *_args: Any, **_parameters: Any) -> dict[str, Any]:
            return self._take_finished(task.request.id)

        self.task(service.wake, name=HINT_TASK, ignore_result=True)
        self.task(generate, name=GENERATE_TASK, bind=True, throws=(JobFailed,), queue=celery_queue())

    def _take_finished(self, task_id: str) -> dict[str, Any]:
        """What ``headrace.generate`` returns; its body runs once the job has ended.

        Raises:
            JobFailed: where the job has no answer.
        """
        result = self.finished.pop(task_id)
        if result.state is JobState.SUCCEEDED:
            # With the first answer's text beside the answers, for the next step of a chain.
            return {**result.model_dump(mode="json"), "text": result.text, "finish_reason": result.finish_reason}
        reason = result.error.message if result.error else result.state.value
        raise JobFailed(f"job {result.job_id} {result.state.value}: {reason}")

    def _told_to_stop(self, **_: Any) -> None:
        """Called in Celery's signal handler, seconds before the pool hears of it."""
        self.service.told_to_stop()

    def run(self) -> int:
        """Run the worker in this thread until it is told to stop; returns the exit status."""
        keep_contents_out()
        # Celery warns of root because of pickle, which headrace never accepts.
        warnings.filterwarnings("ignore", category=SecurityWarning)
        worker = CeleryWorker(
            app=self,
            hostname=f"headrace@{self.service.settings.worker_id}",
            queues=[celery_queue(queue) for queue in self.service.queues],
            loglevel="WARNING",
            quiet=True,
            without_mingle=True,
            without_gossip=True,
            without_heartbeat=True,
        )
        told_to_stop = self._told_to_stop
        worker_shutting_down.connect(told_to_stop, sender=worker.hostname)
        try:
            worker.start()
        finally:
            worker_shutting_down.disconnect(told_to_stop, sender=worker.hostname)
        return int(worker.exitcode or self.service.crashed)
