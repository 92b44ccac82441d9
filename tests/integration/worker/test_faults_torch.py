"""Faults while tensors are copied beside the training, in the copier's thread. (Columns: test_faults.py.)"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.worker.faulty import World, check_and_finish, make_world, session
from tests.support.engine import quick_folder
from tests.support.injection import Fault

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import os, random, time
import numpy, torch
import gpuhop_worker

torch.set_num_threads(1)
torch.manual_seed(1); random.seed(2); numpy.random.seed(3)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
session = gpuhop_worker.session()
session.track(model=model, optimizer=optimizer)
for step in session.steps(int(os.environ["STEPS_TOTAL"])):
    ends = time.monotonic() + 1.5
    while session.active and step in (12, 16, 20) and time.monotonic() < ends:
        if not any(os.scandir(session._config["spool"])): break
        time.sleep(0.002)
    loss = model(torch.randn(4, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    session.log(loss=loss)
    time.sleep(float(os.environ["PAUSE"]))
"""

# A save copies 12 matrices and some small tensors: the first copies are made at once, the last ones in the thread.
CASES = [
    Fault("command copy slot", 8, "kill"),
    Fault("command copy slot", 20, "kill runner"),
    Fault("command write draft", 1, "ENOSPC"),
    Fault("command replace draft", 1, "lost"),
    Fault("command replace draft", 2, "after kill"),
    Fault("command mmap slot", 2, "ENOMEM", stays=True),
    Fault("command pwrite slot", 1, "ENOSPC", stays=True),
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with quick_folder() as root:
        yield make_world(root, SCRIPT)


@pytest.mark.parametrize("fault", CASES, ids=str)
def test_while_it_is_copied(world: World, fault: Fault) -> None:
    with quick_folder() as root:
        bench = world.bench(root)
        told = session(bench, fault)
        assert told.struck, told.output
        check_and_finish(bench, world, told, fault)
