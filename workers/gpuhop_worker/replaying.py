"""A plain DataLoader that goes on where it was: what an epoch gave before the hop is read again and dropped.

For loaders that `session.loader` cannot stand for: iterable datasets, samplers of their own. Reading again costs time,
up to one epoch of data; `session.loader` skips for nothing.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional

from gpuhop_worker.loading import keyed

_END = object()


class Replay:
    """An endless iterator over the batches of `loader`, epoch after epoch; each epoch begins as f(seed, epoch).

    Exact with any number of workers, as long as it stays the same, and with randomness in the workers. The dataset may
    keep nothing from one epoch to the next, and a sampler draws its order when its epoch begins. `set_epoch` of the
    dataset and of the samplers is called with the number of the epoch.

    Raises ValueError for persistent workers: their generators go on from epoch to epoch, where no checkpoint reaches.
    """

    def __init__(self, loader: Any, seed: int = 0) -> None:
        if loader.num_workers and loader.persistent_workers:
            raise ValueError(
                "persistent_workers=True cannot be resumed exactly: leave it out, or use session.loader(dataset, "
                "batch_size, workers=...), whose workers stay for the whole session"
            )
        self._loader = loader
        self._seed = seed
        self._epoch = 0
        self._offset = 0  # batches given out in this epoch
        self._batches: Optional[Iterator[Any]] = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch. Raises ValueError when an epoch has none, and what the dataset raises."""
        batch = self._after() if self._batches is not None else self._begin()
        if batch is _END:
            self._epoch, self._offset = self._epoch + 1, 0
            batch = self._begin()
            if batch is _END:
                raise ValueError("the loader gives no batch")
        self._offset += 1
        return batch

    def _after(self) -> Any:
        assert self._batches is not None
        return next(self._batches, _END)

    def _begin(self) -> Any:
        """Begin the epoch, drop what was given out, and return the batch after that.

        Meanwhile the process's own generators are set by the key, for samplers that draw from them; then they are put
        back. The first batch of an epoch is read inside, because a sampler draws no sooner; all others outside.
        """
        loader = self._loader
        inner = getattr(loader.batch_sampler, "sampler", None)
        with keyed(f"{self._seed}/{self._epoch}") as number:
            parts: List[Any] = [loader, loader.dataset, loader.sampler, loader.batch_sampler, inner]
            for part in parts:
                if hasattr(part, "set_epoch"):
                    part.set_epoch(self._epoch)
                if getattr(part, "generator", None) is not None:
                    part.generator.manual_seed(number)
            self._batches = iter(loader)
            if not self._offset:
                return self._after()
            for _ in range(self._offset):
                self._after()
        return self._after()

    def _shape(self) -> Dict[str, Any]:
        loader = self._loader
        return {"seed": self._seed, "workers": loader.num_workers, "batch_size": loader.batch_size}

    def state_dict(self) -> Dict[str, Any]:
        return dict(self._shape(), epoch=self._epoch, offset=self._offset)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Raises ValueError when the loader was made otherwise."""
        saved = {name: state[name] for name in self._shape()}
        if saved != self._shape():
            raise ValueError(f"the loader was made with {saved!r}, the script asks for {self._shape()!r}")
        self._epoch, self._offset, self._batches = state["epoch"], state["offset"], None
