"""Text -> one tree of YAML nodes with positions, within limits that hold before anything is walked."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 20
MAX_ALIASED = 1000
"""Nodes that aliases may add to the tree, all together."""

# The line ends that YAML itself counts, so that our line numbers are the parser's.
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_NOT_YAML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_PLAINER = (
    ("'\\t' that cannot start any token", "a tab stands where YAML takes only spaces"),
    (
        "expected a single document",
        "a second document begins here: job.yaml holds one job, without `---` lines",
    ),
    (
        "mapping values are not allowed",
        'a ":" is not expected here: quote the text, or check the indentation above',
    ),
    ("found undefined alias", "this alias refers to nothing above: a text that begins with * wants quotes"),
    ("found duplicate anchor", "this anchor stands twice: a text that begins with & wants quotes"),
    ("undefined tag handle", "this tag is unknown: a text that begins with ! wants quotes"),
    ("could not find expected ':'", 'this line has no ":" after its key'),
)


class BadSource(Exception):
    """The text is no single YAML tree within the limits. `line` and `col` count from 1."""

    def __init__(self, line: int, col: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.col = col
        self.message = message


def split_lines(text: str) -> list[str]:
    """The lines as YAML counts them, without their ends."""
    return _LINE_END.split(text)


def decode(data: bytes) -> str:
    """UTF-8 bytes -> text without a byte order mark. BadSource at the first wrong byte, or when too many."""
    if len(data) > MAX_BYTES:
        raise _too_large()
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as wrong:
        before = data[: wrong.start].decode("utf-8")
        line, col = _place(before, len(before))
        message = f"byte 0x{data[wrong.start]:02x} is not UTF-8: save the file as UTF-8"
        raise BadSource(line, col, message) from None


def compose(text: str) -> yaml.Node:
    """The root node. BadSource: not YAML, empty, several documents, too large or deep, too many aliases."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", errors="surrogatepass")) > MAX_BYTES:
        raise _too_large()
    wrong = _NOT_YAML.search(text)
    if wrong is not None:
        raise BadSource(*_place(text, wrong.start()), f"character U+{ord(wrong[0]):04X} cannot stand in YAML")

    import yaml

    from gpuhop.spec.loader import Loader

    loader = Loader(text)
    try:
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        raise _plain(error, loader.marks[-1] if loader.marks else None) from None
    except (ValueError, OverflowError, IndexError):
        # PyYAML does not catch what chr() and int() say to "\U99999999" or to a huge %YAML version.
        mark = loader.get_mark()
        raise BadSource(mark.line + 1, mark.column + 1, "YAML cannot read this escape or number") from None
    finally:
        loader.dispose()
    if node is None:
        raise BadSource(1, 1, "the file is empty")
    root: yaml.Node = node
    return root


def _too_large() -> BadSource:
    return BadSource(1, 1, "the file is larger than 1 MiB: a job.yaml is a few lines; data goes into the code folder")


def _place(text: str, index: int) -> tuple[int, int]:
    """Line and column, from 1, of a character."""
    before = split_lines(text[:index])
    return len(before), len(before[-1]) + 1


def _plain(error: yaml.YAMLError, opened: Any) -> BadSource:
    """The parser's complaint as one sentence at its place. `opened`: where the innermost open list begins."""
    problem = str(getattr(error, "problem", None) or error)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, col = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
    for phrase, plainer in _PLAINER:
        if phrase in f"{getattr(error, 'context', '')} {problem}":
            return BadSource(line, col, plainer)
    context, begun = getattr(error, "context", None), getattr(error, "context_mark", None)
    if context is None or begun is None:
        return BadSource(line, col, f"YAML: {problem}")
    if "end of stream" in problem or "<stream end>" in problem:
        # The end of the file is where it shows; where it began is what must be corrected.
        begun = opened if "flow" in context and opened is not None else begun
        return BadSource(begun.line + 1, begun.column + 1, f"YAML: this is never closed ({context})")
    return BadSource(line, col, f"YAML: {problem} ({context} from line {begun.line + 1})")
