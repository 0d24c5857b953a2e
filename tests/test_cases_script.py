"""bullmq#4587, as in ``test_cases.py``: wrong calls of the script, and a wrong script."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from mqsweep import ScriptError
from mqsweep.script import script_source
from support.cases import Case
from support.ways import script_keys

WRONG_KEYS = {
    "too few": lambda keys: keys[:7],
    "none": lambda _: [],
    "two exchanged": lambda keys: [keys[0], keys[2], keys[1], *keys[3:]],
    "in BullMQ's order": lambda keys: [*keys[:3], *keys[4:], keys[3]],
    "of another queue": lambda keys: [b"emq:{other}:stalled", *keys[1:]],
}
WRONG_ARGUMENTS: dict[str, list[Any]] = {
    "none": [],
    "BullMQ's order": [1, b"emq:{q}:", 1_700_000_000_000, 30_000],
    "no base": [b"", 1, 0],
    "ceiling that is no number": [b"emq:{q}", "many", 0],
    "negative ceiling": [b"emq:{q}", -1, 0],
    "time that is no number": [b"emq:{q}", 1, "now"],
    "interval that is no number": [b"emq:{q}", 1, 0, "soon"],
    "policy that is no JSON": [b"emq:{q}", 1, 0, 30_000, "{"],
    "batch without its token": [b"emq:{q}", 1, 0, 30_000, "{}", "token"],
    "batch of another kind": [b"emq:{q}", 1, 0, 30_000, "{}", "token", 1_000, "rename"],
}


@pytest.mark.parametrize(
    "how", [*(("keys", k) for k in WRONG_KEYS), *(("arguments", a) for a in WRONG_ARGUMENTS)], ids=str
)
def test_wrong_call_of_the_script_is_refused_loudly(client: redis.Redis, how: tuple[str, str]) -> None:
    """bullmq#4587: wrong KEYS or ARGV in a port; the error was swallowed and nothing ever reclaimed."""
    case = Case(client, "script", "echomq")
    case.dead(b"j")
    case.client.sadd(case.key("stalled"), "j")
    before = case.dump()
    keys, arguments = script_keys(case.base), [case.base, 1, 0]
    if how[0] == "keys":
        keys = WRONG_KEYS[how[1]](keys)
    else:
        arguments = WRONG_ARGUMENTS[how[1]]
        if "batch of another kind" in how:
            case.client.set(case.key("stalled-check"), "token")
    with pytest.raises(redis.ResponseError, match="mqsweep"):
        case.client.eval(script_source(), len(keys), *keys, *arguments)
    assert case.dump() == before


@pytest.mark.parametrize("dialect", ["echomq", "bullmq"])
def test_script_error_fails_the_sweep(
    client: redis.Redis, engine: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bullmq#4587: whatever is wrong with the script, the caller hears of it, and the built-in checks are not shut out
    for longer than an interval."""
    case = Case(client, engine, dialect)
    case.dead(b"j")
    for name, value in (("script_source", lambda: "return redis.call('NOSUCH')"), ("script_digest", lambda: "0" * 40)):
        monkeypatch.setattr(f"mqsweep.script.{name}", value)
    with case.sweeper(interval=5) as sweeper, pytest.raises(ScriptError):
        sweeper.sweep()
    assert case.client.pttl(case.key("stalled-check")) <= 10_000
