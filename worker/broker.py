"""kombu's Redis transports, where a worker needs more of them: losses of the connection and foreign list entries.

Both would end the worker otherwise. As of kombu 5.7 a connection that was lost forgets at once where its server was,
so that giving back or acknowledging a message that is still held raises an AttributeError, and whatever is in the
list of a queue is read as a message.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from queue import Empty
from typing import Any, Literal, Self

from celery.app.amqp import AMQP
from kombu import Connection
from kombu.transport import redis
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

logger = logging.getLogger(__name__)


class _DeliveryInfo(BaseModel):
    exchange: str
    routing_key: str


class _Properties(BaseModel):
    delivery_tag: str
    delivery_info: _DeliveryInfo
    body_encoding: Literal["base64"] | None = None


class _Headers(BaseModel):
    task: str
    id: str


class _Message(BaseModel):
    """What kombu looks for in an entry of a list or a channel, unasked."""

    properties: _Properties
    body: str
    content_type: str = Field(alias="content-type")
    content_encoding: str = Field(alias="content-encoding")


_BODY = TypeAdapter(tuple[list[Any], dict[str, Any], Any])
"""Positional and keyword arguments, and what is to follow."""


class _Task(_Message):
    """What Celery looks for in a message of a task: version 2 of its message protocol."""

    headers: _Headers

    @model_validator(mode="after")
    def _body_is_of_a_task(self) -> Self:
        if self.content_type == "application/json":
            body = b64decode(self.body, validate=True) if self.properties.body_encoding else self.body
            _BODY.validate_json(body)
        return self


class _TolerantChannel(redis.Channel):  # type: ignore[misc]
    """A channel that passes over what is no message."""

    def _brpop_read(self, **options: Any) -> bool:
        try:
            return bool(super()._brpop_read(**options))
        except (ValueError, RecursionError) as error:
            logger.error("dropped an entry of a Celery queue that is no JSON: %s", type(error).__name__)
            raise Empty from error


class _TolerantSentinelChannel(_TolerantChannel, redis.SentinelChannel):  # type: ignore[misc]
    """The same over sentinels."""


class _LastingTransport(redis.Transport):  # type: ignore[misc]
    """A transport that knows its server as long as anybody holds one of its messages."""

    Channel = _TolerantChannel
    _client: Connection

    @property
    def client(self) -> Connection:
        """The connection that this transport is of: kombu sets it to None when it gives up the transport."""
        return self._client

    @client.setter
    def client(self, connection: Connection | None) -> None:
        if connection is not None:
            self._client = connection

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            _shape_of(queue).model_validate(message, strict=True)
        except ValidationError as error:
            fields = ", ".join(".".join(map(str, fault["loc"])) or "the whole" for fault in error.errors())
            logger.error("dropped an entry of Celery queue %s that is no message of Celery's: see %s", queue, fields)
        else:
            super()._deliver(message, queue)


class _LastingSentinelTransport(_LastingTransport, redis.SentinelTransport):  # type: ignore[misc]
    """The same over sentinels."""

    Channel = _TolerantSentinelChannel


class WorkerConnection(Connection):  # type: ignore[misc]
    """A connection to the broker over the transports of this module.

    A setting could name them too, but kombu forgets it as soon as it goes on to the next of several sentinels.
    """

    def get_transport_cls(self) -> type[redis.Transport]:
        """The transport for the connection's URL."""
        if issubclass(super().get_transport_cls(), redis.SentinelTransport):
            return _LastingSentinelTransport
        return _LastingTransport


class WorkerAMQP(AMQP):  # type: ignore[misc]
    """Celery's ways of messages, with connections of this module."""

    Connection = WorkerConnection


def _shape_of(queue: str) -> type[_Message]:
    """What the messages of a queue are: tasks, or what ``celery control`` and ``inspect`` send."""
    return _Message if queue.endswith(".pidbox") else _Task
