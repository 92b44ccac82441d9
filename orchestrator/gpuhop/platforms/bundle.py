"""The worker as one reproducible zipapp: sorted names, fixed dates, no compression (zlib versions differ)."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can say
_MAIN = b"import sys\nfrom gpuhop_worker.__main__ import main\nsys.exit(main())\n"


@dataclass(frozen=True)
class Bundle:
    """The zipapp's bytes and their SHA-256."""

    body: bytes
    sha256: str


def build() -> Bundle:
    """Same sources, same bytes, from a checkout or from a wheel."""
    import gpuhop_worker

    package = Path(gpuhop_worker.__file__).parent
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", _MAIN)
        for path in sorted(package.rglob("*.py")):
            _add(archive, f"gpuhop_worker/{path.relative_to(package).as_posix()}", path.read_bytes())
    body = out.getvalue()
    return Bundle(body, hashlib.sha256(body).hexdigest())


def _add(archive: zipfile.ZipFile, name: str, body: bytes) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = 0o644 << 16
    info.create_system = 3  # Unix, also when built on Windows
    archive.writestr(info, body)
