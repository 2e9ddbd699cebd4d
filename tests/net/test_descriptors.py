from __future__ import annotations

import re
import subprocess
import sys

import pytest

#: In a separate process, because a lowered limit can't be raised again.
ASK = """
import resource, sys
import structlog
from oxproxy.net.listener import admitted_connections
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(admitted_connections(connections), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "admitted", "raised"),
    [
        (656, 700, 200, 656),
        (300, 700, 200, 656),
        (300, 456, 100, 456),
        (306, 306, 25, 306),
        (700, 700, 200, 700),
        (64, 64, 1, 64),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_permitted(soft: int, hard: int, admitted: int, raised: int) -> None:
    ran = subprocess.run([sys.executable, "-c", ASK, str(soft), str(hard), "200"], capture_output=True, check=True)
    assert list(map(int, ran.stdout.split())) == [admitted, raised, hard]
    assert (b"admitted=%d" % admitted in _plain(ran.stderr)) == (admitted < 200)


def _plain(text: bytes) -> bytes:
    return re.sub(rb"\x1b\[[0-9;]*m", b"", text)
