"""The effect ledger in Redis, for agents that may have to leave a lost disk behind.

Each operation is one script that Redis runs alone: it compares the fencing token, then the entry's state, then writes. So the
comparison is the server's, and of two that race for one position one is told of the other (RELIABILITY.md I22, I29, T13).

Redis answers a write when its append-only file is synced, if it is set up so (``appendonly yes``, ``appendfsync always``).
Anything less loses claims with the server's power, and with them the promise that nothing is done twice; it is refused
unless the URL says ``?fsync=relaxed``.

Keys, all in one slot of a Redis cluster::

    cleancut:{<cluster>}:fence         hash    incarnation, and s:<participant> -> session
    cleancut:{<cluster>}:e:<token>     hash    one entry
    cleancut:{<cluster>}:all           zset    token by time of its claim
    cleancut:{<cluster>}:open          zset    the same, of those without end
    cleancut:{<cluster>}:closed        zset    token by the newest epoch that can bring its position back
"""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from participant.effects.backend import by_time
from participant.effects.entries import Entry, Kind, State
from participant.effects.ledger import Claimed, Known
from participant.effects.reach import SHARED, covered_by_shared
from protocol.errors import ConfigError, FencedError, LimitExceeded, Refused, StoreError, Unreachable, printable
from protocol.limits import EFFECTS_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from protocol.outputs import FencingToken

_PRUNED_AT_ONCE: Final = 1_000
_READ_AT_ONCE: Final = 500
_TIMEOUT_SECONDS: Final = 5.0
_FOR_NOW: Final = (
    "MISCONF",
    "LOADING",
    "BUSY",
    "OOM",
    "READONLY",
    "MASTERDOWN",
    "NOREPLICAS",
    "TRYAGAIN",
    "CLUSTERDOWN",
)
"""What Redis says when it cannot write at the moment: nothing was done."""

_SCRIPT: Final = """
local fence, all, open, closed, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local op, incarnation, participant, session = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local highest = tonumber(redis.call('HGET', fence, 'incarnation') or '0')
local newest = tonumber(redis.call('HGET', fence, 's:' .. participant) or '0')
if tonumber(incarnation) < highest then return {'fenced', 'incarnation', tostring(highest)} end
if tonumber(session) < newest then return {'fenced', 'session', tostring(newest)} end
if tonumber(incarnation) > highest then redis.call('HSET', fence, 'incarnation', incarnation) end
if tonumber(session) > newest then redis.call('HSET', fence, 's:' .. participant, session) end
if op == 'open' then return {'ok'} end

if op == 'close' then
  local after = ARGV[5]
  for index = 6, #ARGV do
    if redis.call('EXISTS', prefix .. ARGV[index]) == 1 then
      redis.call('HSET', prefix .. ARGV[index], 'closed_after', after, 'closed_in', incarnation)
      redis.call('ZADD', closed, after, ARGV[index])
    end
  end
  return {'ok'}
end
if op == 'reopen' then
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', closed, ARGV[5], '+inf')) do
    if tonumber(redis.call('HGET', prefix .. token, 'closed_in') or '0') < tonumber(incarnation) then
      redis.call('HSET', prefix .. token, 'closed_after', '-1')
      redis.call('ZREM', closed, token)
    end
  end
  return {'ok'}
end
if op == 'prune' then
  local gone = redis.call('ZRANGEBYSCORE', closed, '0', '(' .. ARGV[5], 'LIMIT', 0, ARGV[6])
  for _, token in ipairs(gone) do
    redis.call('DEL', prefix .. token)
    redis.call('ZREM', all, token)
    redis.call('ZREM', open, token)
    redis.call('ZREM', closed, token)
  end
  return {'ok', tostring(#gone)}
end

local token = ARGV[5]
local key = prefix .. token
local state = redis.call('HGET', key, 'state')
local function answer(what) return {what, redis.call('HGETALL', key)} end

if op == 'claim' then
  local claim_id, at, limit = ARGV[6], ARGV[7], tonumber(ARGV[8])
  if state and state ~= 'released' then
    if state == 'claimed' and redis.call('HGET', key, 'claim_id') == claim_id then return answer('claimed') end
    return answer('known')
  end
  if not state and redis.call('ZCARD', all) >= limit then return {'full'} end
  redis.call('DEL', key)
  redis.call('ZREM', closed, token)
  redis.call('HSET', key, 'state', 'claimed', 'claim_id', claim_id, unpack(ARGV, 9))
  redis.call('ZADD', all, at, token)
  redis.call('ZADD', open, at, token)
  return answer('claimed')
end
if not state then return {'missing'} end
if op == 'accept' then
  if state ~= 'done' and state ~= 'failed' and state ~= 'expired' then return {'no-result'} end
  redis.call('HSET', key, 'accepted', ARGV[6])
  return answer('known')
end
if state ~= 'claimed' then return answer('known') end
if op == 'take' then
  local holder = redis.call('HGET', key, 'claim_id')
  if holder == ARGV[6] then return answer('claimed') end
  if holder ~= ARGV[8] then return answer('known') end
  redis.call('HSET', key, 'participant', participant, 'incarnation', incarnation, 'session', session,
    'claim_id', ARGV[6], 'claimed_at', ARGV[7])
  return answer('claimed')
end
if op == 'end' and redis.call('HGET', key, 'kind') == 'step' and redis.call('HGET', key, 'claim_id') ~= ARGV[6] then
  return answer('known')
end
redis.call('HSET', key, 'state', ARGV[7], 'result', ARGV[8], 'reason', ARGV[9], 'ended_at', ARGV[10], 'settled', ARGV[11])
redis.call('ZREM', open, token)
return answer('claimed')
"""

_INTEGERS: Final = frozenset(
    {"ordinal", "incarnation", "session", "claimed_at", "ended_at", "closed_after", "closed_in"}
)
_BYTES: Final = frozenset({"message_id", "intent", "payload", "claim_id", "result", "accepted"})


class RedisEffects:
    """`EffectBackend` on a Redis server.

    Args:
        url: ``redis://[user:password@]host:port[/database][?fsync=relaxed]``, or ``rediss://``.
        cluster: Its name.

    Raises:
        ConfigError: The client library is not installed, or the URL is none.
    """

    shared = True
    ledger_name = SHARED
    covers = staticmethod(covered_by_shared)

    def __init__(self, url: str, *, cluster: str) -> None:
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise ConfigError("effects", "redis is not installed: pip install 'cleancut[redis]'") from None
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        self._relaxed = options.pop("fsync", "") == "relaxed"
        self._shown = f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}{parts.path}"
        """Without password."""
        clean = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(options), ""))
        try:
            self._redis = Redis.from_url(
                clean, socket_timeout=_TIMEOUT_SECONDS, socket_connect_timeout=_TIMEOUT_SECONDS, decode_responses=False
            )
        except ValueError as error:
            raise ConfigError("effects", f"{self._shown}: {error}") from None
        base = f"cleancut:{{{cluster}}}:"
        self._keys = [base + name for name in ("fence", "all", "open", "closed", "e:")]
        self._script = self._redis.register_script(_SCRIPT)
        self._checked = False

    async def open(self, fence: FencingToken) -> None:
        """See `EffectBackend.open`."""
        if not self._checked:
            await self._check_durable()
            self._checked = True
        await self._run("open", fence)

    async def claim(self, entry: Entry, fence: FencingToken) -> Claimed | Known:
        """See `EffectBackend.claim`."""
        fields: list[object] = []
        for name in Entry.__struct_fields__:
            if name not in {"state", "claim_id"}:
                fields += (name, _flat(getattr(entry, name)))
        return self._answer(
            await self._run("claim", fence, entry.token, entry.claim_id, entry.claimed_at, EFFECTS_MAX, *fields)
        )

    async def take(self, token: str, fence: FencingToken, claim_id: bytes, *, before: bytes) -> Claimed | Known:
        """See `EffectBackend.take`."""
        return self._answer(await self._run("take", fence, token, claim_id, time_ns(), before))

    async def end(
        self, token: str, fence: FencingToken, claim_id: bytes, state: State, *, result: bytes = b"", reason: str = ""
    ) -> Claimed | Known:
        """See `EffectBackend.end`. Asked again after a lost answer, it says that it was this end."""
        found = self._answer(await self._run("end", fence, token, claim_id, state.value, result, reason, time_ns(), 0))
        entry = found.entry
        same = (entry.state, entry.result, entry.reason, entry.claim_id) == (state, result, reason, claim_id)
        return Claimed(entry) if same and not entry.settled else found

    async def settle(self, token: str, fence: FencingToken, state: State, *, result: bytes = b"") -> Claimed | Known:
        """See `EffectBackend.settle`."""
        return self._answer(await self._run("settle", fence, token, b"", state.value, result, "", time_ns(), 1))

    async def accept(self, token: str, fence: FencingToken, intent: bytes) -> Known:
        """See `EffectBackend.accept`."""
        return Known(self._answer(await self._run("accept", fence, token, intent)).entry)

    async def entry(self, token: str) -> Entry | None:
        """See `EffectBackend.entry`."""
        found = await self._call(self._redis.hgetall(self._keys[4] + token))
        return _entry(found) if found else None

    async def entries(self, states: Collection[State] = (State.CLAIMED,)) -> list[Entry]:
        """See `EffectBackend.entries`."""
        index = self._keys[2] if set(states) == {State.CLAIMED} else self._keys[1]
        tokens = await self._call(self._redis.zrange(index, 0, -1))
        found: list[Entry] = []
        for start in range(0, len(tokens), _READ_AT_ONCE):
            pipe = self._redis.pipeline(transaction=False)
            for token in tokens[start : start + _READ_AT_ONCE]:
                pipe.hgetall(self._keys[4] + token.decode())
            # One may have been pruned in between.
            found += [_entry(fields) for fields in await self._call(pipe.execute()) if fields]
        # A score is a float: nanoseconds are too fine for it.
        return by_time(found, states)

    async def close_turn(self, tokens: Iterable[str], after: int, fence: FencingToken) -> None:
        """See `EffectBackend.close_turn`."""
        await self._run("close", fence, after, *tokens)

    async def reopen(self, base: int, fence: FencingToken) -> None:
        """See `EffectBackend.reopen`."""
        await self._run("reopen", fence, base)

    async def prune(self, oldest: int, fence: FencingToken) -> int:
        """See `EffectBackend.prune`."""
        gone = 0
        while True:
            count = int((await self._run("prune", fence, oldest, _PRUNED_AT_ONCE))[1])
            gone += count
            if count < _PRUNED_AT_ONCE:
                return gone

    async def aclose(self) -> None:
        """See `EffectBackend.aclose`."""
        await self._redis.aclose()

    async def _check_durable(self) -> None:
        """Refuse a server that forgets.

        Raises:
            ConfigError: It does, or does not say.
        """
        if self._relaxed:
            return
        from redis.exceptions import ResponseError

        hint = "set appendonly yes and appendfsync always there, or say ?fsync=relaxed and lose claims with its power"
        try:
            found: dict[str, str] = {}
            for name in ("appendonly", "appendfsync"):
                answer = await self._call(self._redis.config_get(name), passed=ResponseError)
                found.update({_text(key): _text(value) for key, value in answer.items()})
        except ResponseError:
            raise ConfigError(
                "effects", f"{self._shown} does not say whether it syncs what it writes; {hint}"
            ) from None
        if (found.get("appendonly"), found.get("appendfsync")) != ("yes", "always"):
            raise ConfigError(
                "effects",
                f"{self._shown} has appendonly {found.get('appendonly')} and appendfsync {found.get('appendfsync')}; {hint}",
            )

    async def _run(self, operation: str, fence: FencingToken, *arguments: object) -> list[Any]:
        found = await self._call(
            self._script(
                keys=self._keys,
                args=cast("Any", [operation, fence.incarnation, fence.participant, fence.session, *arguments]),
            )
        )
        what = found[0]
        if what == b"fenced":
            which, highest = _text(found[1]), _text(found[2])
            raise FencedError(
                f"the effect ledger refuses {fence.participant}: it is of incarnation {fence.incarnation}, session "
                f"{fence.session}, and {which} {highest} has begun"
            )
        if what == b"missing":
            raise Refused("no-effect", f"there is no effect {str(arguments[0])[:64]!a}")
        if what == b"no-result":
            raise Refused("no-result", f"effect {arguments[0]} has no result that could be taken")
        if what == b"full":
            raise LimitExceeded(f"{EFFECTS_MAX} effects are kept; they go with the epochs that could bring them back")
        return cast("list[Any]", found)

    async def _call(self, operation: Any, passed: type[Exception] | tuple[()] = ()) -> Any:  # noqa: ANN401 - as the client's
        from redis.exceptions import BusyLoadingError, ConnectionError, RedisError, TimeoutError  # noqa: A004

        try:
            return await operation
        except passed:
            raise
        except (ConnectionError, TimeoutError, BusyLoadingError, OSError) as error:
            raise Unreachable(f"{self._shown} does not answer: {printable(error)}") from error
        except RedisError as error:
            text = str(error)
            if text.startswith(_FOR_NOW):
                raise Unreachable(f"{self._shown} cannot write at the moment: {printable(text)}") from error
            raise StoreError("put", self._shown, printable(text), definite=False) from error

    def _answer(self, found: list[Any]) -> Claimed | Known:
        pairs = found[1]
        entry = _entry(dict(zip(pairs[::2], pairs[1::2], strict=True)))
        return Claimed(entry) if found[0] == b"claimed" else Known(entry)


def _flat(value: object) -> bytes | int | str:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (Kind, State)):
        return value.value
    assert isinstance(value, (bytes, int, str)), "an entry is flat"
    return value


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _entry(fields: dict[bytes, bytes]) -> Entry:
    """An entry out of its hash; unknown fields are passed over.

    Raises:
        StoreError: It is none of ours.
    """
    known: dict[str, Any] = {}
    try:
        for key, value in fields.items():
            name = key.decode()
            if name not in Entry.__struct_fields__:
                continue
            if name in _BYTES:
                known[name] = value
            elif name in _INTEGERS:
                known[name] = int(value)
            elif name == "settled":
                known[name] = value == b"1"
            elif name in {"kind", "state"}:
                known[name] = (Kind if name == "kind" else State)(value.decode())
            else:
                known[name] = value.decode()
        return Entry(**known)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise StoreError("get", "effects", f"an entry that is none of ours: {printable(error)}") from None
