"""Every Redis key of headrace, documented once.

======================  ======  ===============================================================================
key                     type    holds
======================  ======  ===============================================================================
``P:job:ID``            hash    the ledger record of a job (fields below)
``P:events:ID``         stream  the job's event log, one field ``event`` with a JSON document an entry
``P:channel:ID``        pubsub  the same documents, published live
``P:queue:NAME``        zset    ids of queued jobs by order of submission; NAME is a model, or ``default``
``P:running``           zset    ids of running jobs by the end of their lease, in ms
``P:dead``              zset    ids of jobs given up after too many deliveries, by the end of their record, in ms
``P:group:G``           stream  fields ``id`` and ``state`` of each job of group G that ended
``P:sequence``          string  counter behind the order of submission
``P:workers``           zset    worker ids by last heartbeat, in ms
``P:worker:ID``         hash    what a worker says about itself
======================  ======  ===============================================================================

P is the prefix. Fields of a job: ``state``, ``request`` (JSON), ``queue``, ``order``, ``created_ms``,
``retention_s`` (life of the record after the end), ``group``, ``attempt`` (grows with each claim),
``deliveries`` (claims less those handed back in order), ``token`` (of the attempt that owns the job now),
``worker``, ``seq`` and ``completion_tokens`` (of the current attempt's deltas), and after the end ``result``
(JSON), ``ended_by`` (the token of the worker that ended it, where one did) and ``ended_ms``.

Celery keeps its own beside them: ``headrace`` and ``headrace.MODEL`` (lists of messages), ``_kombu.binding.*``,
``headrace:unacked*`` (:mod:`headrace.producers.hints`) and ``celery-task-meta-*`` (results of plain Celery tasks).

The Lua scripts build the same names (``lua/prelude.lua``), since one script may touch many jobs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

DEFAULT_PREFIX = "headrace"
PREFIX_VARIABLE = "HEADRACE_PREFIX"
DEFAULT_QUEUE = "default"


@dataclass(frozen=True)
class Keys:
    """Names of keys under one prefix."""

    prefix: str = DEFAULT_PREFIX

    @classmethod
    def chosen(cls, prefix: str | None = None) -> Keys:
        """Names under a given prefix, else under that of the environment, else under the default one."""
        return cls(prefix or os.environ.get(PREFIX_VARIABLE) or DEFAULT_PREFIX)

    def job(self, job_id: str) -> str:
        """The ledger record of a job."""
        return f"{self.prefix}:job:{job_id}"

    def events(self, job_id: str) -> str:
        """The event log of a job."""
        return f"{self.prefix}:events:{job_id}"

    def channel(self, job_id: str) -> str:
        """The live channel of a job; with a pattern in place of the id, of many."""
        return f"{self.prefix}:channel:{job_id}"

    def queue(self, name: str) -> str:
        """The queued jobs for a model."""
        return f"{self.prefix}:queue:{name}"

    def group(self, group: str) -> str:
        """The endings of a group's jobs."""
        return f"{self.prefix}:group:{group}"

    def worker(self, worker_id: str) -> str:
        """What a worker says about itself."""
        return f"{self.prefix}:worker:{worker_id}"

    @property
    def running(self) -> str:
        """Running jobs by the end of their lease."""
        return f"{self.prefix}:running"

    @property
    def dead(self) -> str:
        """Jobs given up after too many deliveries."""
        return f"{self.prefix}:dead"

    @property
    def sequence(self) -> str:
        """Counter behind the order of submission."""
        return f"{self.prefix}:sequence"

    @property
    def workers(self) -> str:
        """Worker ids by last heartbeat."""
        return f"{self.prefix}:workers"
