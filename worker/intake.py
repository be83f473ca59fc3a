"""Claims queued jobs, as many as the engine can use, and hands them to it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from ..engine import RequestError
from ..producers.errors import InvalidRequest
from ..producers.ledger import Ledger, Submission
from ..producers.results import ErrorInfo
from ..producers.schema import GenerationRequest
from .engine_request import EngineRequest, RequestTranslator
from .inflight import InflightJobs, OwnedJob
from .settings import WorkerSettings

logger = logging.getLogger(__name__)

CLAIM_CHUNK = 256
"""Jobs claimed in one round trip."""


class Intake:
    """Keeps the engine's waiting room filled.

    Work is pulled from the ledger: a wake-up, by a hint or by a job that ended, only says that it is time to
    look. So a lost hint costs at most ``poll_s``, and a busy worker leaves to others what it cannot use.

    Args:
        queues: names of the ledger queues to serve.
        max_inflight: most jobs owned at once; several times the engine's batch, so that it has a choice.
        translator: encodes prompts and compiles grammars, here and not in the step loop.
        on_request: called with each job's request id and what the engine takes.
        on_refused: called with the request id of each job that the model cannot take.
    """

    def __init__(
        self,
        ledger: Ledger,
        inflight: InflightJobs,
        settings: WorkerSettings,
        *,
        queues: Sequence[str],
        max_inflight: int,
        translator: RequestTranslator,
        on_request: Callable[[str, EngineRequest], None],
        on_refused: Callable[[str, ErrorInfo], None],
    ) -> None:
        self._ledger = ledger
        self._inflight = inflight
        self._settings = settings
        self._queues = queues
        self._max_inflight = max_inflight
        self._translator = translator
        self._on_request = on_request
        self._on_refused = on_refused
        self._submissions: list[Submission] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-intake", daemon=True)

    def start(self) -> None:
        """Begin to claim."""
        self._thread.start()

    def stop(self) -> None:
        """Claim nothing from here on, also where it has not begun."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def submit(self, submission: Submission) -> None:
        """Write a job that came as a Celery message into the ledger, before the next claim. Never blocks."""
        with self._lock:
            self._submissions.append(submission)
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._record_submissions()
                while self._claim_chunk():
                    pass
            except RedisError as error:
                logger.warning("cannot claim jobs (%s); trying again", error)
            self._wake.wait(self._settings.poll_s)
            self._wake.clear()

    def _record_submissions(self) -> None:
        with self._lock:
            waiting = list(self._submissions)
        if waiting:
            self._ledger.submit(waiting)
            with self._lock:
                del self._submissions[: len(waiting)]

    def _claim_chunk(self) -> bool:
        """Claim jobs up to the limit; returns whether more may be had at once."""
        wanted = min(self._max_inflight - len(self._inflight), CLAIM_CHUNK)
        if wanted < 1 or self._stopping.is_set():
            return False
        settings = self._settings
        claims = self._ledger.claim(settings.worker_id, self._queues, wanted, settings.lease_ms)
        # All are owned before the first is encoded: the lease thread must know them.
        jobs = [OwnedJob(claim) for claim in claims]
        for job in jobs:
            self._inflight.add(job)
        for job in jobs:
            self._encode(job)
        return len(claims) == wanted

    def _encode(self, job: OwnedJob) -> None:
        request_id = job.claim.request_id
        try:
            request = GenerationRequest.model_validate_json(job.claim.request)
            translated = self._translator.translate(request)
        except (RequestError, InvalidRequest) as error:
            self._on_refused(request_id, bad_request(error))
        except Exception as error:
            # Whatever a prompt may do to a template or a tokenizer, it must not stop the intake.
            logger.exception("job %s cannot be encoded", job.claim.job_id)
            message = f"the request cannot be encoded: {type(error).__name__}: {error}"
            self._on_refused(request_id, ErrorInfo(code="encoding_failed", message=message))
        else:
            job.echo, job.tool_format = translated.echo, translated.tool_format
            self._on_request(request_id, translated)


def bad_request(error: RequestError | InvalidRequest) -> ErrorInfo:
    """A refusal in the form that results carry."""
    return ErrorInfo(code=error.code, message=error.message, param=error.param, status_code=400)
