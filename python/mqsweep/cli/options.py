"""What can be said on the command line, and what it means."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Literal, NoReturn
from urllib.parse import urlsplit

from ..connect import mask_url
from ..dialects import DIALECTS
from ..engine import CHOICES as ENGINES
from ..engine import engine_info
from ..errors import ConfigurationError

URL_VARIABLE = "MQSWEEP_REDIS_URL"
DEFAULT_URL = "redis://localhost:6379/0"

SWEEPER_OPTIONS = (
    *("dialect", "prefix", "hash_tag", "interval", "max_stalled_count", "max_attempts", "mark", "requeue"),
    *("grace", "hold", "engine", "max_pause", "bullmq_version", "timeout"),
)

_EPILOG = """\
durations: 30s, 1m30s, 500ms, 2h; a plain number is seconds

exit codes:
  0  done; stalled, failed and refused jobs are results, not errors
  1  a sweep failed, or was held
  2  usage: an option or a value that cannot work
  3  Redis is not reachable
  4  throttled or fenced on every queue

Results go to stdout, everything else to stderr. Long lists of ids are cut; --json has all of them.
"""

_JSON = """\
With --json, stdout is JSON and nothing else: one object a line, one line per {what}. Bytes of an id that are not
UTF-8 appear as \\udcXX, as Python's "surrogateescape" writes them.
"""

_UNITS = (("d", 86400.0), ("h", 3600.0), ("m(?!s)", 60.0), ("s", 1.0), ("ms", 0.001))
_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?)\s*{unit})?\s*" for unit, _ in _UNITS))


def duration(text: str) -> float:
    """Seconds: ``30s``, ``1m30s``, ``500ms``, or a plain number of seconds.

    Raises:
        argparse.ArgumentTypeError: no such thing.
    """
    plain = re.fullmatch(r"\d+(?:\.\d*)?|\.\d+", text.strip())
    if plain:
        return float(text)
    found = _DURATION.fullmatch(text.strip())
    if not found or not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 30s, 1m30s, 500ms or a number of seconds")
    parts = zip(found.groups(), _UNITS, strict=True)
    return sum(float(number) * unit for number, (_, unit) in parts if number)


def whole(text: str) -> int:
    """A whole number.

    Raises:
        argparse.ArgumentTypeError: it is not.
    """
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def check_url(url: str) -> None:
    """Refuse a URL that would be read other than it was meant.

    An unescaped ``/``, ``?`` or ``#`` in a password ends the part of the URL that is masked when it is shown, so
    that what follows would be sent, and printed, as something else.

    Raises:
        ConfigurationError: such a URL; it is not quoted.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return  # not a URL at all: refused, masked, where it is used
    beyond = url.partition("://")[2][len(parts.netloc) :]
    if "@" in beyond and "@" not in parts.netloc and (parts.netloc or parts.scheme != "unix"):
        raise ConfigurationError(
            "the URL has its '@' too late: in a user name or password, write / ? # @ as %2F %3F %23 %40"
        )


def url_of(options: argparse.Namespace) -> str:
    """The URL that was given, by option or by environment."""
    given: str | None = getattr(options, "url", None)
    return given or os.environ.get(URL_VARIABLE) or DEFAULT_URL


def sweeper_options(options: argparse.Namespace) -> dict[str, Any]:
    """What was given of the Sweeper's options, by its own names; the rest is its defaults' business."""
    return {name: getattr(options, name) for name in SWEEPER_OPTIONS if getattr(options, name, None) is not None}


def hidden(url: str) -> str:
    """The URL as it may be shown, also one that `check_url` refuses."""
    try:
        check_url(url)
    except ConfigurationError:
        return "***"
    return mask_url(url)


def hide_urls(text: str, arguments: Sequence[str]) -> str:
    """The text without the URLs that stand in the arguments; argparse quotes arguments in its complaints."""
    parts = {part for a in arguments for part in (a, a.partition("=")[2], a.removeprefix("-u"))}
    for secret in sorted((part for part in parts if "://" in part), key=len, reverse=True):
        for form in (repr(secret), secret):
            text = text.replace(form, hidden(secret))
    return text


class _UsageError(Exception):
    """What argparse complains of, and the command that it was said to."""

    def __init__(self, message: str, command: str) -> None:
        super().__init__(message)
        self.command = command


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises what it has to complain of: it may quote a password."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message, self.prog)


class _Version(argparse.Action):
    """Prints version and engine; asked for only then, since it loads the native core."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        info = engine_info()
        core = f"core {info.core} ({info.build_profile})" if info.core else "no native core"
        print(f"mqsweep {info.version}, engine {info.engine} ({info.reason}), {core}, {info.python}")
        parser.exit(0)


def _common(parser: argparse.ArgumentParser, *, url: bool = True) -> None:
    """Options that may stand before or after the command; unset ones leave no trace, so neither place wins."""
    add = parser.add_argument
    unset: Any = argparse.SUPPRESS
    if url:
        add("-u", "--url", metavar="URL", default=unset, help=f"Redis; else ${URL_VARIABLE}, else {DEFAULT_URL}")
    add("--json", action="store_true", default=unset, help="print JSON, one object a line")
    add("-v", "--verbose", action="store_true", default=unset, help="say more")


def _queue_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queues", nargs="*", metavar="QUEUE", help="the queue's name, without prefix and braces")
    group = parser.add_argument_group("which queue")
    add: Any = group.add_argument
    add("--dialect", choices=tuple(DIALECTS), help="key layout and recovery policy (default: echomq)")
    add("--prefix", metavar="TEXT", help="first part of every key (default: emq, or bull)")
    add("--hash-tag", action=argparse.BooleanOptionalAction, help="name in braces (default: as the dialect does)")
    add("--bullmq-version", metavar="X.Y.Z", help="where the queue's meta does not say it")
    group = parser.add_argument_group("how to sweep")
    add = group.add_argument
    add("--interval", type=duration, metavar="TIME", help="between the starts of two sweeps (default: 30s, bullmq 15s)")
    add("--max-stalled-count", type=whole, metavar="N", help="stalls that a job survives (default: 1)")
    add("--max-attempts", type=whole, metavar="N", help="attempts that a job survives which does not say so (echomq)")
    add("--mark", choices=("lockless", "active"), help="mark stalled jobs only, or all that are active, as BullMQ does")
    add("--requeue", choices=("back", "front"), help="where recovered jobs join wait (default: by dialect)")
    add("--grace", choices=("marks", "strict"), help="what counts as seen stalled before (strict: not built yet)")
    add("--hold", action="append", metavar="GUARD", help="hold recoveries back when this guard is up (not built yet)")
    add("--engine", choices=ENGINES, help="whose scan is used (default: auto, or $MQSWEEP_ENGINE)")
    add("--max-pause", type=duration, metavar="TIME", help="longest call of the script (default: 5ms)")
    add("--timeout", type=duration, metavar="TIME", help="wait for a reply (default: 10s)")


def _demo_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--jobs", type=whole, default=20_000, metavar="N", help="active jobs (default: 20000)")
    add("--attempts", type=whole, default=2, metavar="N", help="attempts that a job survives, 1 to 9 (default: 2)")
    add("--interval", type=duration, default=2.0, metavar="TIME", help="between two sweeps (default: 2s)")


Command = Literal["demo", "sweep", "run", "inspect", "queues", "doctor"]

_COMMANDS: dict[Command, tuple[str, str]] = {
    "demo": (
        "kill workers for real on a private server and watch their jobs come back",
        "Starts a Valkey of its own on a private unix socket, kills and pauses worker processes for real, and shows "
        "mark, grace, recovery and ceiling happen; beside it the freeze of the one-call script. Leaves nothing behind.",
    ),
    "sweep": (
        "sweep once: mark what is stalled, recover what was marked before",
        "One sweep of each queue named: a job without a lock is marked on first sight, and recovered by a sweep one "
        "interval later if it still has none. " + _JSON.format(what="queue"),
    ),
    "run": (
        "the service: sweep until SIGINT or SIGTERM",
        "Sweeps each queue named, one thread each, and keeps its lease, which turns the built-in checks of its workers "
        "off while this runs. Prints a line when something moved or the status changed (-v: always). "
        "SIGINT or SIGTERM: the current batch ends, exit 0. " + _JSON.format(what="sweep"),
    ),
    "inspect": (
        "who is stalled now; changes nothing",
        "Lists the active jobs without a lock, oldest first; writes nothing, takes no lease. "
        + _JSON.format(what="queue"),
    ),
    "queues": (
        "the queues that are there, and how each is",
        "Finds queues with SCAN and says of each: dialect, release and how it was told, jobs, and who holds the lease. "
        "Changes nothing. " + _JSON.format(what="queue"),
    ),
    "doctor": (
        "can this Redis, and these queues, be swept well",
        "Looks at versions, role, eviction, rights, clock and engine, and at the queues named (without a name: at all "
        "that are found, from outside). Each finding has its remedy; exit 1 if any is serious. Changes nothing. "
        + _JSON.format(what="finding"),
    ),
}


def parser_of() -> argparse.ArgumentParser:
    """The whole command line."""
    from .bench import add_parser as add_bench  # which takes its options' types from here

    parser = _Parser(
        prog="mqsweep",
        description="Finds jobs whose worker died and puts them back to work, without freezing Redis.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _common(parser)
    parser.add_argument("--version", action=_Version, nargs=0, help="print version and engine")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (short, long) in _COMMANDS.items():
        sub = commands.add_parser(name, help=short, description=long, allow_abbrev=False)
        if name == "demo":
            _demo_options(sub)
        elif name == "queues":
            sub.add_argument("queues", nargs="*", metavar="PATTERN", help="only these, e.g. 'mail*' (default: all)")
            sub.add_argument("--timeout", type=duration, metavar="TIME", help="wait for a reply (default: 10s)")
        else:
            _queue_options(sub)
        if name == "sweep":
            sub.add_argument("--dry-run", action="store_true", help="the same as inspect: change nothing")
        _common(sub, url=name != "demo")
    add_bench(commands)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line.

    Raises:
        SystemExit: usage (2), or help and version were printed (0).
        ConfigurationError: a value that cannot work.
    """
    try:
        options = parser_of().parse_args(arguments)
        _complete(options)
    except _UsageError as usage:
        said = hide_urls(str(usage), arguments).replace("\n", "\\n")
        print(f"mqsweep: {said}\nmqsweep: see '{usage.command} --help'", file=sys.stderr)
        raise SystemExit(2) from None
    return options


def _complete(options: argparse.Namespace) -> None:
    """Fill in what was not said, and refuse what argparse cannot know to be wrong."""
    options.json = getattr(options, "json", False)
    options.verbose = getattr(options, "verbose", False)
    if options.command in ("demo", "bench"):
        return
    command = f"mqsweep {options.command}"
    if not options.queues and options.command not in ("queues", "doctor"):
        raise _UsageError(f"which queue? Name it: {command} QUEUE [QUEUE ...]", command)
    for name in options.queues:
        if "://" in name:
            raise _UsageError(f"{name} is no queue: give a URL with -u, or in ${URL_VARIABLE}", command)
    options.queues = list(dict.fromkeys(options.queues))
    options.url = url_of(options)
    check_url(options.url)
