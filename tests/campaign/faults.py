"""The faults of the campaign. Each function causes one fault, waits, and ends it."""

from __future__ import annotations

import os
import random
import signal
import time
import urllib.error
from collections.abc import Callable

from pamqp import commands

from tests.campaign.site import FRAGILE, REFRESH_SECONDS, Site
from tests.faults.faulty_disk import State
from tests.private_broker import PrivateBroker
from tests.producer import Closed, Gone, Producer, until
from tests.rabbitmq import quoted
from tests.sidecar import Sidecar, is_ready, request_page

Fault = Callable[[Site, random.Random], None]


def kill_sidecar(site: Site, draw: random.Random) -> None:
    site.restart(draw.randrange(2), signal.SIGKILL)


def restart_sidecar(site: Site, draw: random.Random) -> None:
    """SIGTERM: the sidecar drains."""
    site.restart(draw.randrange(2), signal.SIGTERM)


def stop_sidecar(site: Site, draw: random.Random) -> None:
    """SIGSTOP and SIGCONT."""
    process = site.sidecars[draw.randrange(2)].process_id
    os.kill(process, signal.SIGSTOP)
    time.sleep(draw.uniform(0.2, 5.0))
    os.kill(process, signal.SIGCONT)


def reset_producers(site: Site, draw: random.Random) -> None:
    for publisher in site.publishers:
        if draw.random() < 0.6:
            publisher.reset()


def reset_broker_connections(site: Site, draw: random.Random) -> None:
    number = draw.choice((signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2))
    for network in draw.sample(site.networks, draw.randint(1, 2)):
        network.signal(number)


def delay_broker_connections(site: Site, draw: random.Random) -> None:
    network = draw.choice(site.networks)
    network.signal(signal.SIGSTOP)
    time.sleep(draw.uniform(0.2, 5.0))
    network.signal(signal.SIGCONT)


def close_broker_connections(site: Site, draw: random.Random) -> None:
    """An administrator closes some connections, which the broker announces with 320."""
    for connection in site.broker.api("GET", f"vhosts/{quoted(site.vhost)}/connections"):
        if draw.random() < 0.5:
            try:
                site.broker.api("DELETE", f"connections/{quoted(connection['name'])}")
            except urllib.error.HTTPError as error:
                error.close()  # it has ended


def reload_storm(site: Site, draw: random.Random) -> None:
    """Changed, invalid and equal rules, by HTTP and by signal, faster than they can be loaded."""
    for _ in range(draw.randint(5, 30)):
        sidecar = draw.choice(site.sidecars)
        site.write_rules(draw.randint(0, 20), draw.choice(("", "", "", "invalid: [")))
        if draw.random() < 0.5:
            os.kill(sidecar.process_id, signal.SIGHUP)
        else:
            request_page(f"{sidecar.admin}/-/reload", b"")
    site.write_rules()
    until(lambda: all(_reloaded(sidecar) for sidecar in site.sidecars), 60)


def _reloaded(sidecar: Sidecar) -> bool:
    return request_page(f"{sidecar.admin}/-/reload", b"")[0] == 200


def lose_queue(site: Site, draw: random.Random) -> None:
    """Delete a queue, and declare it again through a sidecar or directly."""
    # Messages sent before this are lost with the queue, or find it missing, until both sidecars know the new queue.
    site.excused[FRAGILE] = float("inf")
    _retried(site, site.broker.port, commands.Queue.Delete(queue=FRAGILE))
    time.sleep(draw.choice((0.0, 0.1, 3.0)))
    port = draw.choice((site.broker.port, *site.ports))
    _retried(site, port, commands.Queue.Declare(queue=FRAGILE, durable=True))
    time.sleep(2 * REFRESH_SECONDS)
    until(lambda: site.knows(FRAGILE), 60)
    site.excused[FRAGILE] = time.monotonic()


def _retried(site: Site, port: int, command: commands.Queue.Delete | commands.Queue.Declare) -> None:
    def done() -> bool:
        try:
            with Producer(port, site.vhost).open() as producer:
                producer.ask(command)
        except (Closed, Gone, OSError):
            return False
        return True

    until(done, 60)


def fail_disk(site: Site, draw: random.Random) -> None:
    """The disk of an audit log is full, or hangs."""
    number = draw.randrange(2)
    site.disks[number].become(draw.choice((State.FULL, State.HUNG)))
    time.sleep(draw.uniform(0.2, 7.0))
    site.disks[number].become(State.WELL)
    until(lambda: is_ready(f"{site.sidecars[number].admin}/readyz"), 60)


def memory_alarm(site: Site, draw: random.Random) -> None:
    broker = _private(site)
    broker.rabbitmqctl("set_vm_memory_high_watermark", "0.00001")
    time.sleep(draw.uniform(0.2, 3.0))
    broker.rabbitmqctl("set_vm_memory_high_watermark", "0.4")


def disk_alarm(site: Site, draw: random.Random) -> None:
    broker = _private(site)
    broker.rabbitmqctl("set_disk_free_limit", "900000GB")
    time.sleep(draw.uniform(0.2, 3.0))
    broker.rabbitmqctl("set_disk_free_limit", "50MB")


def kill_broker(site: Site, draw: random.Random) -> None:
    broker = _private(site)
    broker.kill()
    time.sleep(draw.uniform(0.0, 2.0))
    broker.start()


def restart_broker(site: Site, draw: random.Random) -> None:
    broker = _private(site)
    broker.rabbitmqctl("stop_app")
    time.sleep(draw.uniform(0.0, 1.0))
    broker.rabbitmqctl("start_app")


def _private(site: Site) -> PrivateBroker:
    assert isinstance(site.broker, PrivateBroker), "this fault needs a private broker"
    return site.broker


#: Faults of sidecars, networks, disks and queues, with their weights.
FAULTS: dict[Fault, int] = {
    kill_sidecar: 4,
    restart_sidecar: 2,
    stop_sidecar: 3,
    reset_producers: 4,
    reset_broker_connections: 4,
    delay_broker_connections: 3,
    close_broker_connections: 2,
    reload_storm: 3,
    lose_queue: 3,
    fail_disk: 3,
}
#: Faults of the broker itself.
BROKER_FAULTS: dict[Fault, int] = {memory_alarm: 2, disk_alarm: 2, kill_broker: 2, restart_broker: 1}


def name(fault: Fault) -> str:
    return fault.__name__.replace("_", " ")


def drawn(draw: random.Random, of_broker: bool) -> Fault:
    faults = FAULTS | BROKER_FAULTS if of_broker else FAULTS
    [fault] = draw.choices(list(faults), list(faults.values()))
    return fault
