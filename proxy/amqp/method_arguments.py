"""Typed readers of the methods that the proxy looks into.

Each reader takes a method frame's payload (ids included) that is known to be that method, and leaves out reserved
arguments. Strings and tables are bytes; a table is given as its entries, without its own length. Every reader raises
``ProtocolError`` 502 with class and method ids where the arguments don't fill the payload.

Source: AMQP 0-9-1 spec, 1.4 to 1.8; RabbitMQ "Exchange to exchange bindings".
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.amqp.methods import arguments


class Close(NamedTuple):
    """``Connection.Close`` or ``Channel.Close``."""

    reply_code: int
    reply_text: bytes
    class_id: int
    method_id: int


class ExchangeDeclare(NamedTuple):
    """``Exchange.Declare``."""

    exchange: bytes
    exchange_type: bytes
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    nowait: bool
    arguments: bytes


class ExchangeDelete(NamedTuple):
    """``Exchange.Delete``."""

    exchange: bytes
    if_unused: bool
    nowait: bool


class ExchangeBind(NamedTuple):
    """``Exchange.Bind`` or ``Exchange.Unbind``."""

    destination: bytes
    source: bytes
    routing_key: bytes
    nowait: bool
    arguments: bytes


class QueueDeclare(NamedTuple):
    """``Queue.Declare``."""

    queue: bytes
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    nowait: bool
    arguments: bytes


class QueueDeclareOk(NamedTuple):
    """``Queue.DeclareOk``."""

    queue: bytes
    message_count: int
    consumer_count: int


class QueueBind(NamedTuple):
    """``Queue.Bind`` or ``Queue.Unbind`` (which has no nowait bit: False)."""

    queue: bytes
    exchange: bytes
    routing_key: bytes
    nowait: bool
    arguments: bytes


class QueueDelete(NamedTuple):
    """``Queue.Delete``."""

    queue: bytes
    if_unused: bool
    if_empty: bool
    nowait: bool


class Publish(NamedTuple):
    """``Basic.Publish``."""

    exchange: bytes
    routing_key: bytes
    mandatory: bool
    immediate: bool


class Return(NamedTuple):
    """``Basic.Return``."""

    reply_code: int
    reply_text: bytes
    exchange: bytes
    routing_key: bytes


class Deliver(NamedTuple):
    """``Basic.Deliver``."""

    consumer_tag: bytes
    delivery_tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes


class GetOk(NamedTuple):
    """``Basic.GetOk``."""

    delivery_tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    message_count: int


class Ack(NamedTuple):
    """``Basic.Ack``."""

    delivery_tag: int
    multiple: bool


class Nack(NamedTuple):
    """``Basic.Nack``."""

    delivery_tag: int
    multiple: bool
    requeue: bool


def read_close(payload: bytes) -> Close:
    """Read ``Connection.Close`` or ``Channel.Close``."""
    return Close._make(arguments(payload))


def read_exchange_declare(payload: bytes) -> ExchangeDeclare:
    """Read ``Exchange.Declare``."""
    return ExchangeDeclare._make(arguments(payload)[1:])


def read_exchange_delete(payload: bytes) -> ExchangeDelete:
    """Read ``Exchange.Delete``."""
    return ExchangeDelete._make(arguments(payload)[1:])


def read_exchange_bind(payload: bytes) -> ExchangeBind:
    """Read ``Exchange.Bind`` or ``Exchange.Unbind``."""
    return ExchangeBind._make(arguments(payload)[1:])


def read_queue_declare(payload: bytes) -> QueueDeclare:
    """Read ``Queue.Declare``."""
    return QueueDeclare._make(arguments(payload)[1:])


def read_queue_declare_ok(payload: bytes) -> QueueDeclareOk:
    """Read ``Queue.DeclareOk``."""
    return QueueDeclareOk._make(arguments(payload))


def read_queue_bind(payload: bytes) -> QueueBind:
    """Read ``Queue.Bind``."""
    return QueueBind._make(arguments(payload)[1:])


def read_queue_unbind(payload: bytes) -> QueueBind:
    """Read ``Queue.Unbind``."""
    *names, entries = arguments(payload)[1:]
    return QueueBind._make((*names, False, entries))


def read_queue_delete(payload: bytes) -> QueueDelete:
    """Read ``Queue.Delete``."""
    return QueueDelete._make(arguments(payload)[1:])


def read_publish(payload: bytes) -> Publish:
    """Read ``Basic.Publish``."""
    return Publish._make(arguments(payload)[1:])


def read_return(payload: bytes) -> Return:
    """Read ``Basic.Return``."""
    return Return._make(arguments(payload))


def read_deliver(payload: bytes) -> Deliver:
    """Read ``Basic.Deliver``."""
    return Deliver._make(arguments(payload))


def read_get_ok(payload: bytes) -> GetOk:
    """Read ``Basic.GetOk``."""
    return GetOk._make(arguments(payload))


def read_ack(payload: bytes) -> Ack:
    """Read ``Basic.Ack``."""
    return Ack._make(arguments(payload))


def read_nack(payload: bytes) -> Nack:
    """Read ``Basic.Nack``."""
    return Nack._make(arguments(payload))
