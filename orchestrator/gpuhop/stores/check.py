"""`gpuhop store check`: does this store really do what gpuhop needs? Every finding is a real operation, with
real addresses called as a worker calls them (facts/platforms.md 3.2 rule 1 and B9: a "connection test" proves
nothing).

All objects lie below `check-<random>/` and are removed at the end.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlsplit, urlunsplit

from gpuhop.errors import GpuhopError, ObjectMissing, StoreError
from gpuhop.stores.base import Store, Verb
from gpuhop.stores.errors import CHECK
from gpuhop.stores.http import HttpCall, Reply, plain_http
from gpuhop.stores.s3_errors import SKEW_LIMIT_S, skew_seconds

SAME_KEY_PAUSE_S = 1.1
"""R2 takes one write per second to one key (facts/platforms.md section 3)."""

SKEW_WARN_S = SKEW_LIMIT_S / 3
"""Said well before the store starts to refuse."""

DATE_GRAIN_S = 2.0
"""A Date header has whole seconds, and the answer takes its time."""

SHORT_TTL_S = 1.0
"""Life of the address that must be refused afterwards."""

EXPIRY_GRACE_S = 2.5
"""Waited in all before it is tried: SigV4 dates are whole seconds."""

TTL_S = 300.0
_REFUSED = (401, 403)
_SIGNATURES = "this server checks no signatures: use it for tests only"


@dataclass(frozen=True)
class Finding:
    """One thing that was tried. `ok` false with `required` true: gpuhop cannot use this store as it is."""

    name: str
    ok: bool
    detail: str
    hint: str = ""
    required: bool = True


@dataclass
class _Probe:
    """The check under way: the store, how to call an address, and what was found."""

    store: Store
    now: Callable[[], datetime]
    http: HttpCall
    sleep: Callable[[float], None]
    monotonic: Callable[[], float]
    prefix: str
    findings: list[Finding] = field(default_factory=list)
    short_lived: tuple[str, float] | None = None

    @property
    def signed(self) -> bool:
        return self.store.traits.scheme != "file"

    def add(self, name: str, ok: bool, detail: str, hint: str = "", required: bool = True) -> None:
        self.findings.append(Finding(name, ok, detail, "" if ok else hint, required))

    def pause(self) -> None:
        if self.signed:
            self.sleep(SAME_KEY_PAUSE_S)

    def address(self, verb: Verb, name: str, ttl_s: float = TTL_S) -> str:
        return self.store.presign(verb, self.prefix + name, ttl_s)

    def step(self, name: str, act: Callable[[_Probe], None]) -> bool:
        """Run one step; an error becomes its finding."""
        try:
            act(self)
        except GpuhopError as error:
            self.add(name, False, error.fact, error.hint)
            return False
        return True


def check(
    store: Store,
    now: Callable[[], datetime],
    http: HttpCall = plain_http,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> list[Finding]:
    """Try everything; takes 3 to 5 s on a healthy S3. When the first write fails, nothing else is tried."""
    probe = _Probe(store, now, http, sleep, monotonic, f"check-{secrets.token_hex(6)}/")
    if not probe.step("write", _write):
        return probe.findings
    for name, act in _STEPS:
        if probe.signed or name not in _SIGNED_ONLY:
            probe.step(name, act)
    probe.step("clean up", _clean_up)
    return probe.findings


def probe_create_once(store: Store, http: HttpCall = plain_http, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Does the second put_new on a key get refused, and leave the first object whole?

    409 counts as refused: AWS answers it to a conditional write in a race (facts/platforms.md section 3).
    """
    key = f"check-{secrets.token_hex(6)}/once"
    address = store.presign("put_new", key, TTL_S)
    try:
        first = http("PUT", address, b"first")
        if first.status in _REFUSED:
            raise StoreError(f"the store answers {first.status} to a fresh create-once address", CHECK)
        if not 200 <= first.status < 300:
            return False
        if store.traits.scheme != "file":
            sleep(SAME_KEY_PAUSE_S)
        second = http("PUT", address, b"second")
        return second.status in (409, 412) and store.get(key) == b"first"
    finally:
        store.delete(key)


def _write(probe: _Probe) -> None:
    probe.store.put(probe.prefix + "a", b"one")
    probe.add("write", True, "an object was written")


def _read(probe: _Probe) -> None:
    ok = probe.store.get(probe.prefix + "a") == b"one"
    probe.add("read", ok, "the same bytes came back" if ok else "other bytes came back", CHECK)


def _list(probe: _Probe) -> None:
    rows = {entry.key: entry.size for entry in probe.store.list(probe.prefix)}
    ok = rows.get(probe.prefix + "a") == 3
    detail = "a listing shows the object at once" if ok else "a listing does not show a fresh object"
    probe.add("list", ok, detail, "choose a strongly consistent bucket (Tigris: not Global or Dual)")


def _overwrite(probe: _Probe) -> None:
    probe.pause()
    probe.store.put(probe.prefix + "a", b"two!")
    ok = probe.store.get(probe.prefix + "a") == b"two!"
    detail = "a read after an overwrite gives the new bytes" if ok else "a read after an overwrite gives old bytes"
    probe.add("overwrite", ok, detail, "choose a strongly consistent bucket (Tigris: not Global or Dual)")


def _address_put(probe: _Probe) -> None:
    probe.short_lived = (probe.address("get", "a", SHORT_TTL_S), probe.monotonic())
    reply = probe.http("PUT", probe.address("put", "b"), b"by address")
    ok = 200 <= reply.status < 300 and probe.store.get(probe.prefix + "b") == b"by address"
    probe.add("address: put", ok, _said("an upload without a key", reply), "check the key's permissions")


def _address_get(probe: _Probe) -> None:
    reply = probe.http("GET", probe.address("get", "a"), None)
    ok = reply.status == 200 and reply.body == b"two!"
    probe.add("address: get", ok, _said("a download without a key", reply), "check the key's permissions")
    seconds = skew_seconds(reply.headers.get("date"), probe.now())
    if seconds is None:
        return
    detail = "this machine's clock agrees with the store's"
    if abs(seconds) > DATE_GRAIN_S:
        direction = "ahead of" if seconds > 0 else "behind"
        detail = f"this machine's clock is {abs(seconds):.0f} s {direction} the store's"
    detail += f" (requests are refused past {SKEW_LIMIT_S:.0f} s)"
    probe.add("clock", abs(seconds) <= SKEW_WARN_S, detail, "sudo timedatectl set-ntp true")


def _address_delete(probe: _Probe) -> None:
    reply = probe.http("DELETE", probe.address("delete", "b"), None)
    gone = all(entry.key != probe.prefix + "b" for entry in probe.store.list(probe.prefix))
    probe.add(
        "address: delete",
        200 <= reply.status < 300 and gone,
        _said("a delete without a key", reply) + ("" if gone else "; the object is still listed"),
        "give the key the right to delete, or checkpoints pile up while this machine sleeps",
    )


def _walls(probe: _Probe) -> None:
    """An address must open its own door and no other."""
    address = probe.address("get", "a")
    parts = urlsplit(address)
    other = urlunsplit(parts._replace(path=parts.path[:-1] + "z"))
    last = "1" if address[-1] == "0" else "0"
    tries = (
        ("walls: other key", "GET", other, "an address used for another key", True),
        ("walls: tampered", "GET", address[:-1] + last, "an address with a changed signature", True),
        ("walls: other verb", "PUT", address, "an upload to a download address", True),
        (
            "walls: anonymous",
            "GET",
            urlunsplit(parts._replace(query="")),
            "a read without any signature",
            False,
        ),
    )
    for name, method, target, what, required in tries:
        reply = probe.http(method, target, b"intruder" if method == "PUT" else None)
        hint = _SIGNATURES if required else "make the bucket private: anyone can read your checkpoints"
        probe.add(name, reply.status in _REFUSED, _said(what, reply), hint, required)


def _transport(probe: _Probe) -> None:
    parts = urlsplit(probe.address("get", "a"))
    safe = parts.scheme == "https" or parts.hostname in ("127.0.0.1", "::1", "localhost")
    detail = "addresses travel encrypted, or stay on this machine" if safe else "addresses travel in clear (http)"
    probe.add("transport", safe, detail, "use an https:// endpoint", required=False)


def _create_once(probe: _Probe) -> None:
    kept = probe_create_once(probe.store, probe.http, probe.sleep)
    promised = probe.store.traits.create_once
    detail = "the store refuses to create a key twice" if kept else "the store overwrites a create-once key"
    if kept and not promised:
        detail += "; the store URL does not use it yet"
    hint = "add &create_once=no to the store URL" if promised else "nothing to do: gpuhop does not rely on it"
    probe.add("create once", kept, detail, hint, required=promised)


def _expiry(probe: _Probe) -> None:
    if probe.short_lived is None:
        return
    address, made = probe.short_lived
    probe.sleep(max(0.0, made + EXPIRY_GRACE_S - probe.monotonic()))
    reply = probe.http("GET", address, None)
    ok = reply.status in (400, *_REFUSED)
    probe.add("walls: expiry", ok, _said("an address past its life", reply), _SIGNATURES)


def _delete(probe: _Probe) -> None:
    key = probe.prefix + "a"
    probe.store.delete(key)
    probe.store.delete(key)  # the second must be silent
    try:
        probe.store.get(key)
        gone = False
    except ObjectMissing:
        gone = all(entry.key != key for entry in probe.store.list(probe.prefix))
    detail = "a deleted object is gone at once" if gone else "a deleted object can still be seen"
    probe.add("delete", gone, detail, "choose a strongly consistent bucket")


def _clean_up(probe: _Probe) -> None:
    for entry in list(probe.store.list(probe.prefix)):
        probe.store.delete(entry.key)


def _said(what: str, reply: Reply) -> str:
    return f"{what}: the store answers {reply.status}"


_STEPS: tuple[tuple[str, Callable[[_Probe], None]], ...] = (
    ("read", _read),
    ("list", _list),
    ("overwrite", _overwrite),
    ("address: put", _address_put),
    ("address: get", _address_get),
    ("address: delete", _address_delete),
    ("walls", _walls),
    ("transport", _transport),
    ("create once", _create_once),
    ("walls: expiry", _expiry),
    ("delete", _delete),
)

_SIGNED_ONLY = frozenset({"walls", "transport", "walls: expiry"})
"""A file address is a path: it is not signed, and whoever can read the folder needs none."""
