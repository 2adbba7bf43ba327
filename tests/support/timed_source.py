"""A source of items for tests of bursts."""

from __future__ import annotations

import anyio


class Source:
    """Gives items at given times, then ends, raises or hangs; notes that it was closed."""

    def __init__(self, *items, end: Exception | str | None = None) -> None:
        self.items = items
        self.end = end
        self.closed = False

    async def __call__(self):
        try:
            for at, item in self.items:
                await anyio.sleep_until(at)
                yield item
            if isinstance(self.end, Exception):
                raise self.end
            if self.end == "never":
                await anyio.sleep_forever()
        finally:
            self.closed = True
