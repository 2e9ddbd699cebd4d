"""Runs one piece of the campaign: a new site, a number of random faults one after the other, and the verdict."""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.campaign import faults
from tests.campaign.matching import Verdict
from tests.campaign.site import Site, site
from tests.private_broker import BrokerFailed, PrivateBroker
from tests.producer import Closed, Gone
from tests.rabbitmq import Broker
from tests.sidecar import SidecarFailed

#: Faults after which the queues are emptied, so that they stay short.
FAULTS_PER_ROUND = 5


class Piece:
    """The result of a piece."""

    def __init__(self, verdict: Verdict, happened: Counter[str], seconds: float) -> None:
        self.verdict = verdict
        self.faults = happened
        self.seconds = seconds


def run(broker: Broker, vhost: str, seed: int, count: int, seconds: float, verbose: bool = True) -> Piece:
    """Run a piece.

    Args:
        broker: the broker. Only a ``PrivateBroker`` has faults itself.
        vhost: an empty virtual host.
        seed: seed of the faults.
        count: number of faults.
        seconds: time after which no fault begins.
        verbose: whether each fault is printed.
    """
    began = time.monotonic()
    draw = random.Random(seed)
    happened: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="oxproxy-campaign-") as folder:
        with site(broker, vhost, Path(folder), seed) as running:
            running.await_recovery()
            while sum(happened.values()) < count and time.monotonic() - began < seconds and not running.failures:
                fault = faults.drawn(draw, isinstance(broker, PrivateBroker))
                _cause(fault, running, draw, verbose)
                happened[faults.name(fault)] += 1
                if sum(happened.values()) % FAULTS_PER_ROUND == 0:
                    _settle(running)
                    running.resume()
            _settle(running)
            verdict = running.judge()
    return Piece(verdict, happened, time.monotonic() - began)


def _settle(running: Site) -> None:
    try:
        running.settle()
    except (AssertionError, Closed, Gone, OSError) as error:
        running.failures.append(f"queues could not be emptied: {error!r}")


def _cause(fault: faults.Fault, running: Site, draw: random.Random, verbose: bool) -> None:
    began = ended = time.monotonic()
    try:
        fault(running, draw)
        ended = time.monotonic()
        running.await_recovery()
    except (AssertionError, BrokerFailed, SidecarFailed, OSError, subprocess.TimeoutExpired) as error:
        running.failures.append(f"{faults.name(fault)}: {error!r}")
    if verbose:
        recovered = time.monotonic() - ended
        settled = sum(publisher.settled for publisher in running.publishers)
        print(
            f"  {faults.name(fault):28} {ended - began:5.1f} s, recovered after {recovered:4.1f} s, {settled} settled",
            flush=True,
        )
    time.sleep(draw.uniform(0.0, 1.5))
