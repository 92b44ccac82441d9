"""Snapshots on their way while the command runs: shipped as they come, with growing pauses while the store is away."""

from __future__ import annotations

import os
import time
from typing import Callable

from gpuhop_worker import pace
from gpuhop_worker.beat import Heart
from gpuhop_worker.orders import Fenced, Orders
from gpuhop_worker.places import Places
from gpuhop_worker.shipper import GrantUsedUp, Shipper
from gpuhop_worker.store import StoreFailure

LONGEST_PAUSE_S = 30.0


class Shipping:
    """Ships what the command and the folder watch leave in the spool. `time_left`: real seconds of the session's
    budget."""

    def __init__(
        self,
        shipper: Shipper,
        places: Places,
        heart: Heart,
        orders: Orders,
        time_left: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._shipper = shipper
        self._spool = places.spool
        self._pace = places.pace
        self._time_left = time_left
        self.not_before = 0.0  # monotonic: when the next snapshot may be taken
        self._heart = heart
        self._orders = orders
        self._say = say
        self._pause_s = 0.0
        self._after = 0.0
        self._trouble = ""  # why a checkpoint waits

    @property
    def note(self) -> str:
        """Why a checkpoint waits, or how far it is; empty when none is on its way."""
        return self._trouble or self._shipper.meter.text

    def turn(self) -> None:
        """Ship the newest snapshot, if one waits. A failure is told, and tried again later."""
        if self._orders.fenced or time.monotonic() < self._after:
            return
        if self._orders.stop is not None and self._shipper.saved_seq and self._shipper.checkpoints_left <= 1:
            return  # the grant's last checkpoint is for the last state: what the command saves when it leaves
        try:
            if not os.listdir(self._spool):
                return
            self._heart.fresh()
            if not self._orders.fenced and self._shipper.ship_newest():
                self._shipped()
                if self._shipper.checkpoints_left <= 1:
                    self._orders.give("drained", "budget")
        except (StoreFailure, OSError) as failure:
            self._failed(failure)
        except GrantUsedUp:
            self._orders.give("drained", "budget")
        except Fenced:
            return

    def last(self) -> None:
        """After the command: what still waits. Raises Fenced, StoreFailure, OSError."""
        try:
            if self._shipper.ship_newest():
                self._shipped()
        except GrantUsedUp as error:
            self._say(str(error))

    def _failed(self, failure: Exception) -> None:
        if not self._trouble:
            self._say(f"a checkpoint waits on this disk: {failure}")
        self._trouble = str(failure) or repr(failure)
        self._pause_s = min(LONGEST_PAUSE_S, max(0.5, 2 * self._pause_s))
        self._after = time.monotonic() + self._pause_s

    def _shipped(self) -> None:
        self._trouble, self._pause_s = "", 0.0
        ship = self._shipper
        share = f"{ship.shipped_bytes / 1e6:.1f} of {ship.raw_bytes / 1e6:.1f} MB shipped"
        self._say(f"saved step {ship.saved_step} (checkpoint {ship.saved_seq}, {share})")
        pause = pace.pause_s(ship.checkpoints_left - 1, ship.checkpoints_in_all, self._time_left())
        if pause:
            self.not_before = time.monotonic() + pause
            try:
                pace.tell(self._pace, self.not_before)
            except OSError:
                pass  # a full disk; the next checkpoint tells again
