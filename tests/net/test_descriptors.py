from __future__ import annotations

import subprocess
import sys

import pytest

#: In a process of its own, since a limit that was lowered can't be raised again.
ASK = """
import resource, sys
from proxy.net.listener import raise_descriptor_limit
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
found = raise_descriptor_limit(connections)
print(found.limit, found.wanted, found.connections, found.enough, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "found"),
    [
        (656, 700, 200, "656 656 200 True 656 700"),
        (300, 700, 200, "656 656 200 True 656 700"),
        (300, 456, 200, "456 656 100 False 456 456"),
        (306, 306, 200, "306 656 25 False 306 306"),
        (700, 700, 200, "700 656 200 True 700 700"),
        (64, 64, 200, "64 656 1 False 64 64"),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_permitted(soft: int, hard: int, connections: int, found: str) -> None:
    command = [sys.executable, "-c", ASK, str(soft), str(hard), str(connections)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == found.split()
