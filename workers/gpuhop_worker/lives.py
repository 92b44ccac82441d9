"""The lives of the user's command in one session: started, and after a crash started again from the newest state that
lies on this machine. Nothing is read from the store for it (ADR 0012)."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

from gpuhop_worker import child, files, localstate, preparing, restarts, saving
from gpuhop_worker.commanding import Commanding, End
from gpuhop_worker.localstate import Start
from gpuhop_worker.orders import Orders
from gpuhop_worker.places import Places
from gpuhop_worker.progress import Progress
from gpuhop_worker.restarts import Life
from gpuhop_worker.restore import Restored
from gpuhop_worker.shipper import Shipper
from gpuhop_worker.shipping import Shipping
from gpuhop_worker.slots import SlotKeeper
from gpuhop_worker.store import StoreFailure
from gpuhop_worker.streams import MetricsFile
from gpuhop_worker.watching import Watching
from gpuhop_worker.wire import Grant


class Lives:
    """`restored`: what the session began with, None for nothing; `ask`: raises Fenced when another session holds the
    job. `crashes`: the lives that ended in one; `restarts`: how many were followed by another life."""

    def __init__(
        self,
        grant: Grant,
        places: Places,
        slots: SlotKeeper,
        shipper: Shipper,
        shipping: Shipping,
        metrics: MetricsFile,
        progress: Progress,
        orders: Orders,
        ask: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._grant = grant
        self._places = places
        self._slots = slots
        self._shipper = shipper
        self._shipping = shipping
        self._metrics = metrics
        self._progress = progress
        self._orders = orders
        self._ask = ask
        self._say = say
        self.crashes: List[Life] = []
        self.restarts = 0

    def run(
        self, commanding: Commanding, env: Dict[str, str], restored: Optional[Start], watching: Optional[Watching]
    ) -> End:
        """Until it ends for good. Raises Fenced, and OSError when it cannot even begin."""
        start, snapshots = restored, 0
        end: Optional[End] = None
        while True:
            try:
                if watching is None:
                    child.write_session_file(self._grant, self._places, self._slots.paths, start, snapshots)
                end = commanding.run(env, watching)
            except OSError as error:
                if end is None:
                    raise
                self._not_again(end, error)  # the snapshot that it had made is shipped all the same
                return end
            try:
                if not self._crashed_and_may_go_on(end, watching):
                    return end
                newest = localstate.newest(self._grant, self._places.spool, self._shipper, restored)
                if not self._gets_further(end, start, newest):
                    return end
                reached, start = self._progress.step, newest
                snapshots = self._go_back(start, watching)
            except (OSError, StoreFailure) as error:
                self._not_again(end, error)
                return end
            self.restarts += 1
            count = f"({self.restarts} of {self._grant.restarts})"
            step = self._progress.step
            self._say(
                f"the command {restarts.how(end.status)} at step {reached}; started again from step {step} {count}"
            )

    def _not_again(self, end: End, error: Exception) -> None:
        self._say(f"the command {restarts.how(end.status)}, and cannot be started again here: {error}")

    def _crashed_and_may_go_on(self, end: End, watching: Optional[Watching]) -> bool:
        """Raises Fenced, OSError, StoreFailure."""
        if not restarts.crashed(self._grant.mode, end.status) or self._grant.restarts == 0:
            return False
        self._ask()
        if self._orders.stop is not None or not self._nobody_trains_on(end):
            return False
        if watching is not None and not watching.take_last(end.cut_off_at):
            return False
        if len(localstate.waiting(self._places.spool)) > 1:
            self._shipping.last()  # or no slot would be left for the next snapshot
        return True

    def _nobody_trains_on(self, end: End) -> bool:
        """A process of the dead command would go on writing into the slots and the metrics. It may have left the
        command's group."""
        try:
            claim = files.read(self._places.claim)
            alive = not claim or claim == saving.claimant(int(claim.split()[0]))
        except FileNotFoundError:
            alive = False
        return not (alive or end.survived)

    def _gets_further(self, end: End, start: Optional[Start], newest: Optional[Start]) -> bool:
        began, step = (start.number, start.step) if start is not None else (0, 0)
        number = newest.number if newest is not None else 0
        self.crashes.append(Life(end.status, began, number, self._progress.step > step))
        return restarts.start_again(self._grant.mode, self.crashes, self._grant.restarts)

    def _go_back(self, start: Optional[Start], watching: Optional[Watching]) -> int:
        """Put everything back to this state. Returns the number of the last snapshot. Raises OSError."""
        spool, step = self._places.spool, start.step if start is not None else 0
        shipped = self._shipper.last
        last = max(localstate.drop_torn(spool), localstate.number_of(shipped[0]) if shipped is not None else 0)
        files.remove(self._places.claim)
        self._metrics.cut(step)
        self._progress.start_again(step)
        if start is not None:
            slot = self._slots.opened(start.slot)
            preparing.put_down(self._grant, self._places, Restored(start.manifest, slot, start.offsets))
        if watching is not None:
            watching.watch.rebuilt()
        return last
