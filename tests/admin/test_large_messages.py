from __future__ import annotations

import asyncio
import time

import pytest

from proxy.admin.explain import ExplainPage
from proxy.errors import ConfigErrors
from tests.rules.loading import load


async def test_a_large_message_does_not_block_other_tasks() -> None:
    page = ExplainPage(lambda: load("exchanges: [{name: e}]"), tuple, lambda: 0.0)
    body = b"{" + b",".join(b'"%d": 1' % key for key in range(20000)) + b"}"  # less than a fifth of MAX_BODY_BYTES
    explaining = asyncio.ensure_future(page.explain(body))
    longest = 0.0
    while not explaining.done():
        began = time.monotonic()
        await asyncio.sleep(0)
        longest = max(longest, time.monotonic() - began)
    with pytest.raises(ConfigErrors):
        await explaining
    assert longest < 1
