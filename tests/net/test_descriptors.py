from __future__ import annotations

import subprocess
import sys

import pytest

#: In a process of its own, since a limit that was lowered can't be raised again.
ASK = """
import resource, sys
from proxy.net.descriptors import provide
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
found = provide(connections)
print(found.limit, found.wanted, found.connections, found.enough, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "found"),
    [
        (500, 600, 200, "500 500 200 True 500 600"),
        (150, 600, 200, "500 500 200 True 500 600"),
        (150, 300, 200, "300 500 100 False 300 300"),
        (150, 150, 200, "150 500 25 False 150 150"),
        (600, 600, 200, "600 500 200 True 600 600"),
        (64, 64, 200, "64 500 1 False 64 64"),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_permitted(soft: int, hard: int, connections: int, found: str) -> None:
    command = [sys.executable, "-c", ASK, str(soft), str(hard), str(connections)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == found.split()
