"""Every Redis key of headrace, documented once.

======================  ======  ===============================================================================
key                     type    holds
======================  ======  ===============================================================================
``P:job:ID``            hash    the ledger record of a job (fields below)
``P:events:ID``         stream  the job's event log, one field ``event`` with a JSON document an entry
``P:channel:ID``        pubsub  the same documents, published live
``P:queue:NAME``        zset    ids of queued jobs by order of submission; NAME is a model, or ``default``
``P:running``           zset    ids of running jobs by the end of their lease, in ms
``P:delayed``           zset    ids of queued jobs that wait for a second try, by when it is due, in ms
``P:deadlines``         zset    ids of jobs that have a deadline and have not ended, by it, in ms
``P:queued``            hash    number of queued jobs by tenant
``P:limits``            hash    what may be queued (:mod:`headrace.producers.limits`)
``P:tenants``           hash    tenants and digests of their tokens (:mod:`headrace.producers.tenants`)
``P:dead``              zset    ids of jobs given up after too many deliveries, by the end of their record, in ms
``P:group:G``           stream  fields ``id`` and ``state`` of each job of group G that ended
``P:sequence``          string  counter behind the order of submission
``P:workers``           zset    worker ids by last heartbeat, in ms
``P:worker:ID``         hash    what a worker says about itself
``P:control:WORKER``    pubsub  ids of the worker's jobs that were cancelled or expired
``P:arrivals:NAME``     pubsub  a message for each job that found queue NAME empty
======================  ======  ===============================================================================

P is the prefix. Fields of a job: ``state``, ``request`` (JSON), ``queue``, ``order``, ``created_ms``,
``retention_s`` (life of the record after the end), ``group``, ``tenant``, ``ttl_ms`` and ``deadline_ms`` (where it
has one), ``attempt`` (grows with each claim), ``deliveries`` (claims less those handed back in order), ``token`` (of
the attempt that owns the job now), ``worker``, ``seq`` and ``completion_tokens`` (deltas that stand, and their
tokens), ``reset_by`` (the token of the attempt that started over), and after the end ``result`` (JSON), ``ended_by``
(the token of the worker that ended it, where one did), ``ended_ms`` and ``requeued_as`` (the job that was made of it).

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
    def delayed(self) -> str:
        """Queued jobs that wait for a second try, by when it is due."""
        return f"{self.prefix}:delayed"

    @property
    def deadlines(self) -> str:
        """Jobs that have a deadline and have not ended, by it."""
        return f"{self.prefix}:deadlines"

    @property
    def queued(self) -> str:
        """Number of queued jobs by tenant."""
        return f"{self.prefix}:queued"

    @property
    def limits(self) -> str:
        """What may be queued."""
        return f"{self.prefix}:limits"

    @property
    def tenants(self) -> str:
        """Tenants and digests of their tokens."""
        return f"{self.prefix}:tenants"

    def control(self, worker_id: str) -> str:
        """The channel on which a worker hears of its jobs that were cancelled or expired."""
        return f"{self.prefix}:control:{worker_id}"

    def arrivals(self, queue: str) -> str:
        """The channel on which idle workers hear that a queue is not empty any more."""
        return f"{self.prefix}:arrivals:{queue}"

    @property
    def sequence(self) -> str:
        """Counter behind the order of submission."""
        return f"{self.prefix}:sequence"

    @property
    def workers(self) -> str:
        """Worker ids by last heartbeat."""
        return f"{self.prefix}:workers"
