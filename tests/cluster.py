"""A cluster of three private RabbitMQ nodes on this machine, with Khepri, whose nodes a test can kill and separate.

A separated node rejects the cookie of the others, as they reject its own, so that no Erlang connection is possible
between them. For the nodes, this is the same as a network partition.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.private_broker import PrivateBroker, free_port, program
from tests.watched import Watched

#: The nodes wait less for the others than by default, so that a test takes seconds instead of minutes.
CONFIG = ("net_ticktime = 5",)


class Cluster:
    """The running nodes; the first one has a management API that sidecars use."""

    def __init__(self, nodes: list[PrivateBroker]) -> None:
        self.nodes = nodes

    def others(self, node: PrivateBroker) -> list[PrivateBroker]:
        return [other for other in self.nodes if other is not node]

    def leader(self, asked: PrivateBroker) -> PrivateBroker:
        """The node that decides about metadata, according to another node."""
        name = (
            asked.rabbitmqctl("eval", "element(2, ra_leaderboard:lookup_leader(rabbitmq_metadata)).").strip().strip("'")
        )
        return next(node for node in self.nodes if node.node == name)

    @contextlib.contextmanager
    def without(self, *nodes: PrivateBroker) -> Iterator[None]:
        """Kill nodes, and start them again afterwards, with their data."""
        for node in nodes:
            node.kill()
        try:
            yield
        finally:
            for node in nodes:
                node.start()

    @contextlib.contextmanager
    def separated(self, node: PrivateBroker) -> Iterator[None]:
        """Permit no connections between a node and the others, and connect them again afterwards."""
        for other in self.others(node):
            node.rabbitmqctl("eval", f"erlang:set_cookie('{other.node}', separated).")
        for other in self.others(node):
            node.rabbitmqctl("eval", f"erlang:disconnect_node('{other.node}').")
        try:
            yield
        finally:
            for other in self.others(node):
                node.rabbitmqctl("eval", f"erlang:set_cookie('{other.node}', erlang:get_cookie()).")
            for other in self.others(node):
                node.rabbitmqctl("eval", f"net_kernel:connect_node('{other.node}').")

    def empty(self, node: PrivateBroker) -> None:
        """Start a killed node with an empty disk, as a broker of its own, and remove it from the cluster."""
        self.others(node)[0].rabbitmqctl("forget_cluster_node", node.node)
        node.erase()
        node.start()

    def add(self, node: PrivateBroker) -> None:
        """Add an empty node to the cluster, and to the members of all quorum queues."""
        join(node, self.others(node)[0])
        node.rabbitmqctl("eval", f'rabbit_quorum_queue:grow(\'{node.node}\', <<".*">>, <<".*">>, all).')


def join(node: PrivateBroker, member: PrivateBroker) -> None:
    for command in (["stop_app"], ["join_cluster", member.node], ["start_app"]):
        node.rabbitmqctl(*command)


@contextlib.contextmanager
def cluster_of_three(root: Path) -> Iterator[Cluster]:
    """Start three nodes from a root file system."""
    with ExitStack() as stack:
        port, folder = free_port(), Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oxproxy-epmd-")))
        command = [*program("epmd", root), "-address", "127.0.0.1", "-port", str(port)]
        epmd = Watched(folder, [command], os.environ, folder / "log")
        stack.callback(epmd.end)
        cookie = secrets.token_hex(10)
        nodes = [PrivateBroker(CONFIG, root=root, epmd_port=port, cookie=cookie) for _ in range(3)]
        for node in nodes:
            stack.callback(node.stop)
        with ThreadPoolExecutor() as pool:
            list(pool.map(PrivateBroker.start, nodes))
        for node in nodes[1:]:
            join(node, nodes[0])
        yield Cluster(nodes)
