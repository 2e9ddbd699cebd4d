"""Clients that request the console's events: ``python -m tests.bench.followers PORT COUNT``.

Each client reads its events. A refused client retries after the time given by the sidecar. The first retries are spread
over this time, so that the rate of requests is constant.
"""

from __future__ import annotations

import asyncio
import random
import sys

REQUEST = b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: The value of `Retry-After` in the sidecar's refusals.
AGAIN_SECONDS = 5.0
AT_ONCE = 50


async def follow(port: int, in_turn: asyncio.Semaphore, asked: asyncio.Semaphore) -> None:
    first = True
    pause = random.uniform(0, AGAIN_SECONDS)
    while True:
        async with in_turn:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(REQUEST)
                answer = await reader.read(1 << 16)
            except OSError:
                answer = b""
        if first:
            asked.release()
            first = False
        while answer and not answer.startswith(b"HTTP/1.1 503"):
            answer = await reader.read(1 << 16)
        writer.close()
        await asyncio.sleep(pause)
        pause = AGAIN_SECONDS


async def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2])
    in_turn, asked = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(follow(port, in_turn, asked))
        for _ in range(count):
            await asked.acquire()
        print("all have asked", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
