"""What can be wrong with a store, as types: the engine parks a run at CapExceeded and waits out
StoreUnreachable.
"""

from __future__ import annotations

from gpuhop.errors import StoreError

CHECK = "gpuhop store check"


class StoreUnreachable(StoreError):
    """No answer: the network is down, the name is wrong, or the server is."""


class StoreRefused(StoreError):
    """The store answers, and refuses our key or this operation."""


class BucketMissing(StoreError):
    """The store answers, and has no such bucket."""


class StoreBusy(StoreError):
    """The store still says "slow down" after the retries."""


class CapExceeded(StoreError):
    """A cap of the account is used up: terminal until it is reset or raised.

    On Backblaze B2 even list and delete fail then (facts/platforms.md B10), so the caller stops instead of
    retrying.
    """


class ClockSkewed(StoreError):
    """This machine's clock is too far from the store's: S3 refuses past 15 minutes (facts/platforms.md B6).

    `seconds` is this machine's time minus the store's, or None when the store sent no Date.
    """

    def __init__(self, fact: str, hint: str, seconds: float | None) -> None:
        super().__init__(fact, hint)
        self.seconds = seconds
