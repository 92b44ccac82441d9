"""Small trainings for tests: each is one script, run by the worker as a user's script would be."""

from __future__ import annotations

PLAIN = '''
"""Torch-free training: every part of its state is random, and each step mixes all of them."""
import hashlib, random, time, os
import gpuhop_worker
from gpuhop_worker.data import KeyedBatches

class Model:
    def __init__(self):
        self.weights = [0.5] * 8
        self.seen = {}
        self.odd = (1, 2.5, None, b"\\x00\\xff", float("inf"))
    def state_dict(self):
        return {"weights": self.weights, "seen": self.seen, "odd": self.odd, "big": 1 << 9000}
    def load_state_dict(self, state):
        assert state["big"] == 1 << 9000
        self.weights, self.seen, self.odd = state["weights"], state["seen"], state["odd"]

random.seed(7)
session = gpuhop_worker.session()
model, data = Model(), KeyedBatches(37, 4, seed=3)
session.track(model=model, data=data)
for step in session.steps(int(os.environ.get("STEPS_TOTAL", "60"))):
    batch = data.batch(step)
    for i in batch:
        model.weights[i % 8] += random.gauss(0, 1) * 0.1
        model.seen[i] = model.seen.get(i, 0) + 1
    text = repr((model.weights, sorted(model.seen.items()), model.odd))
    session.log(loss=sum(model.weights), batch=batch, digest=hashlib.sha256(text.encode()).hexdigest())
    time.sleep(float(os.environ.get("PAUSE", "0.005")))
print("trained to", session.step)
'''

_ARRAYS = """
import numpy
class Weights:
    def __init__(self):
        self.w = numpy.zeros(3000)
    def state_dict(self):
        return {"w": self.w}
    def load_state_dict(self, state):
        self.w = state["w"]
weights = Weights()
"""

# The same with arrays, so that its checkpoints have packs.
PACKED = _ARRAYS + PLAIN.replace("track(model=model", "track(weights=weights, model=model").replace(
    "    batch = data.batch(step)\n", "    batch = data.batch(step)\n    weights.w += numpy.random.randn(3000)\n"
).replace("random.seed(7)\n", "random.seed(7)\nnumpy.random.seed(8)\n")

TORCH = '''
"""Everything that a resume can get wrong: dropout, two parameter groups, a scheduler, a scaler, an EMA that is driven
by Python's and NumPy's generators, batch norm with a counter that no state_dict holds, keyed data."""
import os, random, time, warnings
import numpy, torch
import gpuhop_worker
from gpuhop_worker.data import KeyedBatches

warnings.simplefilter("error")
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.manual_seed(1); random.seed(2); numpy.random.seed(3)
TOTAL = int(os.environ.get("STEPS_TOTAL", "40"))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(12, 12, bias=False)
        self.norm = torch.nn.BatchNorm1d(12)
        self.drop = torch.nn.Dropout(0.3)
        self.out = torch.nn.Linear(12, 12, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
    def forward(self, x):
        self.calls += 1
        return self.out(self.drop(torch.relu(self.norm(self.embed(x)))))

class Ema:
    def __init__(self, model):
        self.shadow = {k: v.detach().clone() for k, v in model.named_parameters()}
        self.noise = numpy.zeros(3, dtype=numpy.float32)
        self.count = numpy.int64(0)
    def update(self, model):
        rate = 0.9 + 0.05 * random.random() * float(numpy.random.rand())
        self.noise += numpy.random.randn(3).astype(numpy.float32)
        self.count += 1
        for k, v in model.named_parameters():
            self.shadow[k].mul_(rate).add_(v.detach(), alpha=1 - rate)
    def state_dict(self):
        return {"shadow": self.shadow, "noise": self.noise, "count": self.count}
    def load_state_dict(self, state):
        self.shadow, self.noise, self.count = state["shadow"], state["noise"], state["count"]

def build():
    model = Net()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[3e-2, 1e-2], total_steps=TOTAL + 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
    noise = torch.Generator().manual_seed(5)
    return dict(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, ema=Ema(model), noise=noise,
                data=KeyedBatches(96, 8, seed=11))

def one(step, model, optimizer, scheduler, scaler, ema, noise, data):
    batch = data.batch(step)
    x = torch.stack([torch.sin(torch.arange(12.0) * (i + 1)) for i in batch])
    x = x + 0.1 * torch.randn(x.shape, generator=noise)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = torch.nn.functional.mse_loss(model(x).float(), x)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    ema.update(model)
    return dict(loss=loss, lr=scheduler.get_last_lr(), scale=scaler.get_scale(), batch=batch)

def main():
    session = gpuhop_worker.session()
    parts = build()
    session.track(**parts)
    for step in session.steps(TOTAL):
        session.log(**one(step, **parts))
        time.sleep(float(os.environ.get("PAUSE", "0")))
    print("trained to", session.step)

if __name__ == "__main__":
    main()
'''

FOLDER = '''
"""A script that knows nothing of gpuhop: it writes checkpoint files, keeps the newest three, resumes from the newest
by time, and saves once more when it gets a SIGTERM."""
import json, os, random, signal, sys, time

OUT, TOTAL = "out", int(os.environ.get("STEPS_TOTAL", "60"))
stop = False

def ask(number, frame):
    global stop
    stop = True

def save(state, step):
    state = dict(state, step=step, rng=random.getstate())
    path = f"{OUT}/ckpt-{step}.json"
    with open(path + ".tmp", "w") as out:
        json.dump(state, out)
    os.replace(path + ".tmp", path)
    with open(f"{OUT}/.latest", "w") as out:
        out.write(path)
    found = sorted((os.path.join(OUT, n) for n in os.listdir(OUT) if n.startswith("ckpt-")), key=os.path.getmtime)
    for old in found[:-3]:
        os.unlink(old)

if os.environ.get("IGNORE_TERM"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, ask)
os.makedirs(OUT, exist_ok=True)
random.seed(4)
state, begin = {"sum": 0.0, "trace": []}, 0
found = sorted((os.path.join(OUT, n) for n in os.listdir(OUT) if n.startswith("ckpt-")), key=os.path.getmtime)
if found:
    assert open(f"{OUT}/.latest").read() == found[-1], "the newest file by time is not the newest checkpoint"
    state = json.load(open(found[-1]))
    begin = state["step"]
    version, keys, gauss = state.pop("rng")
    random.setstate((version, tuple(keys), gauss))
print("resumed at", begin, flush=True)
for step in range(begin, TOTAL):
    state["sum"] += random.random()
    state["trace"].append(random.randrange(1000))
    print("step", step + 1, flush=True)
    time.sleep(float(os.environ.get("PAUSE", "0.02")))
    if stop or (step + 1) % 5 == 0 or step + 1 == TOTAL:
        save(state, step + 1)
    if stop:
        sys.exit(3)
'''
