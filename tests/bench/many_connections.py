"""Measures what many connections cost one sidecar, over TCP and over TLS on both sides.

``python -m tests.bench.many_connections`` connects producers to a sidecar in front of a private broker and prints, for
each of TCP and TLS: CPU time and memory per connection, the CPU time of the sidecar while all of them send only
heartbeats, and the CPU time per publish of one more producer with and without these connections.

It needs two file descriptors per connection in the sidecar: ``prlimit --nofile=65536:65536 python -m ...``.
"""

from __future__ import annotations

import argparse
import ssl
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from oxproxy.values import Value
from tests import client
from tests.bench.carriers import Stream, frames
from tests.bench.cases import MICROSECONDS
from tests.bench.cycles import RULES, secured
from tests.bench.memory import steady_memory_kib
from tests.bench.processes import cpu_seconds
from tests.certificates import Authority
from tests.private_broker import PrivateBroker, free_port
from tests.producer import Producer
from tests.sidecar import Sidecar

#: RabbitMQ's default heartbeat, and the number of seconds after which each client sends one.
HEARTBEAT_SECONDS, BEAT_SECONDS = 60, 30
PUBLISH_SECONDS = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.many_connections", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=BEAT_SECONDS, help="duration of the idle phase")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oxproxy-bench-") as name:
        folder = Path(name)
        authority = Authority(folder)
        certificate, key = authority.certificate("localhost")
        secure_port = free_port()
        with PrivateBroker(secured(authority, (certificate, key), secure_port)) as broker:
            measure("TCP", broker, folder, {}, None, options)
            port = free_port()
            tls = {"certificate": str(certificate), "key": str(key)}
            upstream = {"address": f"localhost:{secure_port}", "tls": {"ca": str(authority.ca)}}
            secure = {"listen": [{"address": f"127.0.0.1:{port}", "tls": tls}], "upstream": upstream}
            measure("TLS", broker, folder, secure, authority.client(), options, port)
    return 0


def measure(
    name: str,
    broker: PrivateBroker,
    folder: Path,
    settings: Mapping[str, object],
    tls: ssl.SSLContext | None,
    options: argparse.Namespace,
    port: int = 0,
) -> None:
    """Print the results for one transport.

    Args:
        port: port for producers in the settings; 0: that of the sidecar.
    """
    rules = folder / "rules.yaml"
    rules.write_text(RULES)
    count = options.connections
    with Sidecar(broker, [rules], settings) as sidecar, ExitStack() as stack:
        pid, port = sidecar.process_id, port or sidecar.port
        alone = cpu_per_publish(port, pid, tls)
        memory_kib, cpu, began_at = steady_memory_kib(pid), cpu_seconds(pid), time.monotonic()
        producers = [
            stack.enter_context(Producer(port, tls=tls, heartbeat=HEARTBEAT_SECONDS).open()) for _ in range(count)
        ]
        opening_seconds, opening_cpu = time.monotonic() - began_at, cpu_seconds(pid) - cpu
        memory_kib = steady_memory_kib(pid) - memory_kib
        cpu, began_at = cpu_seconds(pid), time.monotonic()
        for second in range(options.seconds):
            for producer in producers[second % BEAT_SECONDS :: BEAT_SECONDS]:
                producer.send(client.frame(8, 0, b""))
            time.sleep(max(0.0, began_at + second + 1 - time.monotonic()))
        idle = (cpu_seconds(pid) - cpu) / (time.monotonic() - began_at)
        among_many = cpu_per_publish(port, pid, tls)
    print(f"{name}: {count} connections, opened one after the other in {opening_seconds:.0f} s")
    print(f"  CPU time per connection  {opening_cpu / count * 1000:8.2f} ms")
    print(f"  memory per connection    {memory_kib / count:8.1f} KiB")
    print(f"  CPU while idle           {idle * 100:8.1f} % of a core")
    print(f"  CPU time per publish     {among_many:8.2f} us, without these connections {alone:.2f} us", flush=True)


def cpu_per_publish(port: int, pid: int, tls: ssl.SSLContext | None) -> float:
    """Return the sidecar's CPU time per publish of one producer, in microseconds."""
    stream = Stream(port, "/", [frames("bench.cycles", "key", ((b"kind", Value("S", b"k")),))], tls)
    stream.run(PUBLISH_SECONDS / 3)
    cpu = cpu_seconds(pid)
    published, _ = stream.run(PUBLISH_SECONDS)
    return (cpu_seconds(pid) - cpu) / published * MICROSECONDS


if __name__ == "__main__":
    raise SystemExit(main())
