"""Further tasks of the application in docs/how-to/celery.md, and a function that uses them."""

from __future__ import annotations

import os
import signal
from typing import Any

from amqp.exceptions import PreconditionFailed
from celery import chain, group
from kombu.common import Broadcast
from tasks import add, app  # written from the page

app.conf.task_queues = (*app.conf.task_queues, Broadcast("everyone"))
app.conf.task_routes = {"more.reload": {"queue": "everyone"}}


@app.task
def fail() -> None:
    raise ValueError("as intended")


@app.task
def alert(task_id: str) -> None:
    print("alerted of a failure", flush=True)


@app.task(ignore_result=True)
def reload() -> None:
    print("a broadcast arrived", flush=True)


@app.task(bind=True, acks_late=True, ignore_result=True)
def survive(self: Any) -> None:
    if not self.request.delivery_info["redelivered"]:
        print("about to be killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    print("survived", flush=True)


def use() -> None:
    print("chain", chain(add.s(2, 3), add.s(4)).delay().get(timeout=30))
    print("group", group(add.s(0, 1), add.s(1, 2)).delay().get(timeout=30))
    print("failure", type(fail.apply_async(link_error=alert.s()).get(timeout=30, propagate=False)).__name__)
    reload.delay()
    [answer] = app.control.ping(timeout=10, limit=1)
    print("ping", answer["more@here"]["ok"])
    [registered] = app.control.inspect(timeout=10, limit=1).registered().values()
    print("registered", "more.survive" in registered)
    with app.connection() as connection:
        events: list[str] = []
        handlers = {"task-succeeded": lambda event: events.append(event["type"])}
        receiver = app.events.Receiver(connection, handlers=handlers)
        with receiver.consumer_context(wakeup=False) as (receiving, _, _):
            add.delay(1, 1)
            while not events:
                receiving.drain_events(timeout=30)
        print("event", events[0])
    try:
        add.apply_async([1, 1], exchange="strict", routing_key="k", retry=False)
    except PreconditionFailed as refusal:
        print("refused", refusal.reply_code)
