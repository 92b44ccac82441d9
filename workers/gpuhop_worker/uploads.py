"""The packs of one checkpoint on their way, a few at a time, while the rest is coded.

A pack that does not arrive stops the coding: what lies in memory is never more than the packs on their way. The next
try codes the same snapshot again, which gives the same bytes under the same keys (format.md R12), and passes over what
has arrived.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Callable, List, Optional, Set, Type

from gpuhop_worker.files import Data
from gpuhop_worker.store import GrantStore, StoreFailure

AT_ONCE = 3  # more only makes the memory larger
READ_BACK = 8 * 1024 * 1024  # bytes asked for at once


class OtherBytes(StoreFailure):
    """What came back is not what was written."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "other bytes came back than were written", final=True)


class Uploads:
    """Use as a context; leaving it waits for all. `arrived`: keys of packs that are there, which grows. `read_back`:
    every pack is fetched again and compared before it counts."""

    def __init__(self, store: GrantStore, key: Callable[[int], str], arrived: Set[str], *, read_back: bool) -> None:
        self._store = store
        self._key = key
        self._arrived = arrived
        self._read_back = read_back
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._room = threading.Semaphore(AT_ONCE)
        self._futures: List[Future[float]] = []
        self._failure: Optional[Exception] = None
        self.keys: List[str] = []

    def add(self, body: List[Data]) -> str:
        """Take a pack away; returns its key. Waits while as many as may be are on their way. Raises StoreFailure when
        one before it has failed."""
        key = self._key(len(self.keys))
        self.keys.append(key)
        self._room.acquire()
        if self._failure is not None:
            self._room.release()
            raise self._failure
        self._futures.append(self._pool.submit(self._send, key, body))
        return key

    def __enter__(self) -> Uploads:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """Raises the first failure, where nothing else is being raised."""
        self._pool.shutdown(wait=True)
        if error is None and self._failure is not None:
            raise self._failure

    @property
    def rate(self) -> Optional[float]:
        """Bytes per second of the link, from the packs that were sent now; None when there was none."""
        rates = [rate for rate in (future.result() for future in self._futures) if rate > 0]
        return sum(rates) / len(rates) * min(AT_ONCE, len(rates)) if rates else None

    def _send(self, key: str, body: List[Data]) -> float:
        """Bytes per second, 0 for a pack that was there or did not arrive."""
        began, size = time.monotonic(), sum(len(piece) for piece in body)
        try:
            if key in self._arrived or self._failure is not None:
                return 0.0
            self._store.put_once(key, body)
            rate = size / max(1e-6, time.monotonic() - began)
            if self._read_back:
                self._compare(key, body)
            self._arrived.add(key)
            return rate
        except Exception as error:
            self._failure = self._failure or error
            return 0.0
        finally:
            self._room.release()

    def _compare(self, key: str, body: List[Data]) -> None:
        sent = memoryview(b"".join(body))
        for start in range(0, len(sent), READ_BACK):
            part = sent[start : start + READ_BACK]
            if self._store.get_range(key, start, start + len(part)) != part:
                raise OtherBytes(key)
