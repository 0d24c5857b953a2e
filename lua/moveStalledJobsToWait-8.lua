--[[
  mqsweep's authority: the one place that writes to a queue (but for taking the lease).

  KEYS[1..8]  stalled, wait, active, failed, stalled-check, meta, paused, marker
  ARGV[1]     the queue's base, with or without the trailing colon: emq:{orders}:
  ARGV[2]     max_stalled_count: how many stalls a job survives
  ARGV[3]     now in ms; 0 = the server's TIME
  ARGV[4]     interval in ms, the PX of stalled-check (default 30000); with a batch: the lease's new TTL
  ARGV[5]     policy, a JSON object: dialect ("echomq", "bullmq"), mark ("lockless", "active"),
              requeue ("back", "front"), max_attempts, version (of BullMQ, e.g. "5.81.3"; else meta.version
              counts), status (see below)

  WHOLE QUEUE, three to five arguments. Both phases in one call, O(active): first sight marks, second sight
  recovers. Nothing happens while stalled-check exists. Replies {failed ids, recovered ids}; with "status": true
  in the policy also "swept", "held" or "throttled", what was left of the TTL in ms, and the ids kept back.

  A BATCH, from eight arguments on. Nothing changes unless stalled-check holds the token; its TTL is renewed.
  ARGV[6]     token
  ARGV[7]     budget in microseconds: the call stops by itself and says how far it came
  ARGV[8..]   what to do (distances count from the tail of active, 1 = the tail; oldest first):
    lease expire                           set the TTL, or delete the key when the TTL is not positive
    lease takeover <value>                 the key is ours now, if it holds that value
    recover <drift> <places> [<schedulers>] KEYS[9..11] = events, repeat, completed, then job and lock of each
                                           entry, then scheduler keys. places, JSON: each entry's distance, or
                                           a list of them; schedulers, JSON: {"<entry>": which scheduler key};
                                           drift = how far distances fell already
    mark <drift> <places>                  KEYS[9..] = the entries' locks
    cover <from>                           mark="active": mark all from this distance (0 = all) to the tail;
                                           KEYS[9] = events to trim, absent when a recovery did it
    clear {<id>}                           take marks back
  Replies {"fenced", holder}, {"held"} or
    {"ok", entries consumed, microseconds, drift or next <from>, a letter per entry, {entry, text, ...},
     marks placed, events lost, {id, new distance, ...} of entries behind that were moved}
    r recovered, f past the ceiling, g ghost, l lock alive (mark taken back, or not set), u not marked,
    m not found near its distance, x refused (text: why), k marked, c mark taken back
  An entry that is not consumed, with a text: a scheduler's job; send it again with the key of that scheduler.

  A Lua error does not roll back. So all is read and checked first; then the push comes before the removal:
  a tear may leave a job twice, never lose it. Needs Redis 6.2 or any Valkey.
]]
local call, try = redis.call, redis.pcall
local NAMES = {"stalled", "wait", "active", "failed", "stalled-check", "meta", "paused", "marker"}
local TYPES = {"set", "list", "list", "zset", "string", "hash", "list", "zset"}
local OWN = {["events"] = 1, ["repeat"] = 1, ["completed"] = 1, ["delayed"] = 1, ["prioritized"] = 1,
  ["waiting-children"] = 1, ["id"] = 1, ["pc"] = 1, ["limiter"] = 1, ["metrics:completed"] = 1,
  ["metrics:failed"] = 1}
local SEARCH = {16, 64, 256, 1024} -- how far tailward a job is looked for, in growing steps
local OPTS_LIMIT = 65536           -- bytes of a job's opts that are worth decoding
local STALLS = "job stalled more than allowable limit"
local ATTEMPTS = "job stalled on its last attempt"

local function refuse(text) return redis.error_reply("ERR mqsweep: " .. text) end
for i = 1, 8 do OWN[NAMES[i]] = 1 end

if #KEYS < 8 or #ARGV < 3 then
  return refuse("8 keys and 3 arguments at least, got " .. #KEYS .. " and " .. #ARGV)
end
local base = string.gsub(ARGV[1], ":$", "")
for i = 1, 8 do
  if KEYS[i] ~= base .. ":" .. NAMES[i] then
    return refuse("KEYS[" .. i .. "] must be the base in ARGV[1] and ':" .. NAMES[i] .. "'")
  end
end
local STALLED, WAIT, ACTIVE, FAILED, LEASE, META, PAUSED, MARKER = unpack(KEYS, 1, 8)
local max_stalled = tonumber(ARGV[2])
if not (max_stalled and max_stalled >= 0) then return refuse("max_stalled_count must be 0 or more") end
local now = tonumber(ARGV[3])
if not (now and now >= 0) then return refuse("now must be a number of milliseconds") end
local ttl = tonumber(ARGV[4] or 30000)
if not ttl then return refuse("the interval must be a number of milliseconds") end

local policy = {}
if ARGV[5] then
  local fine, value = pcall(cjson.decode, ARGV[5])
  if not fine or type(value) ~= "table" then return refuse("the policy must be a JSON object") end
  policy = value
end
local echomq = policy.dialect ~= "bullmq"
local mark_all = policy.mark == "active"
local to_front = policy.requeue == "front" or (policy.requeue == nil and not echomq)
local max_attempts = tonumber(policy.max_attempts)

-- A queue that is refused must get its lease back, whatever is wrong with its keys.
local lease_only = ARGV[8] == "lease"
for i = lease_only and 5 or 1, lease_only and 5 or 8 do
  local found = call("TYPE", KEYS[i]).ok
  if found ~= "none" and found ~= TYPES[i] then
    return redis.error_reply("WRONGTYPE mqsweep: " .. NAMES[i] .. " is a " .. found .. ", not a " .. TYPES[i])
  end
end

-- Which clock moves inside a script: TIME on Redis up to 7.0, os.clock (CPU time) where TIME stands still.
local has_os, cpu = pcall(function() return os.clock end)
local function clock()
  if has_os then return cpu() * 1000000 end
  local t = call("TIME")
  return t[1] * 1000000 + t[2]
end
if now == 0 then
  local t = call("TIME")
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local started = clock()

-- Says whether the budget is used up, and is asked before each job but the first. The clock costs as much as a tenth
-- of a job, so it is not read before jobs that fit, at the speed of those so far, into half of what is left; unless
-- the last one was an odd one.
local function watch(budget)
  local asked, skip = 0, 0
  return function(odd)
    asked, skip = asked + 1, odd and -1 or skip - 1
    if not budget or skip >= 0 then return false end
    local spent = clock() - started
    skip = spent > 0 and math.min(15, math.floor((budget - spent) * asked / (2 * spent))) or 0
    return spent > budget
  end
end

-- What the queue says of itself at this instant: {paused, concurrency, version, opts.maxLenEvents}
local meta = lease_only and {} or call("HMGET", META, "paused", "concurrency", "version", "opts.maxLenEvents")

-- BullMQ's version as one number, 5053002 for 5.53.2, the latest of its line where it is cut short; nil = unknown.
local function version_of(text)
  local major, minor, patch, rest = string.match(text, "^v?(%d+)%.?(%d*)%.?(%d*)(.?)")
  if not major or not (rest == "" or string.find("-+.", rest, 1, true)) then return nil end
  return tonumber(major) * 1000000 + (tonumber(minor) or 999) * 1000 + (tonumber(patch) or 999)
end
local version = nil
if not echomq then version = version_of(policy.version or string.match(meta[3] or "", "^bullmq:(.*)") or "") end

-- A paused queue of BullMQ 6 keeps its jobs in wait, an older one, and EchoMQ's, in paused; a push to the wrong one
-- strands the job. Where nobody says which it is, the list that has jobs does. nil = nobody knows.
local function keeps_paused_list()
  if echomq then return true end
  if version and version < 7000000 then return version < 6000000 end
  local waits, paused = call("EXISTS", WAIT), call("EXISTS", PAUSED)
  if waits == paused then return nil end
  return paused == 1
end
local into_paused = false
if meta[1] then into_paused = keeps_paused_list() end
local function held() return into_paused == nil end

local function trim(events)
  local limit = meta[4]
  if not limit and not echomq then
    call("HSET", META, "opts.maxLenEvents", "10000")
    meta[4] = "10000"
  end
  if not limit or not string.match(limit, "^%d+$") then limit = "10000" end
  try("XTRIM", events, "MAXLEN", "~", limit)
end

-- Positions ------------------------------------------------------------------------------------------------

-- The nearest of an entry's distances: it has one, or a list of them.
local function nearest(place) return type(place) == "number" and place or place[1] end

-- Where an id stands now: at `distance`, or a short way tailward of it, since distances only fall. nil = not found.
local function finder(places)
  local span = nearest(places[#places]) - nearest(places[1])
  local dense = span < 4 * #places -- close together: one LRANGE costs less than many LINDEX
  local low, high, items = 1, 0, nil
  local function at(distance)
    if distance < low or distance > high then
      if not dense then return call("LINDEX", ACTIVE, -distance) end
      low = distance
      items = call("LRANGE", ACTIVE, -(distance + 199), -distance)
      high = low + #items - 1
    end
    return items[high - distance + 1]
  end
  return function(id, distance)
    if distance < 1 then return nil end
    if at(distance) == id then return distance end
    local from = distance - 1
    for _, width in ipairs(SEARCH) do
      if from < 1 then return nil end
      local to = math.max(1, from - width + 1)
      local near = call("LRANGE", ACTIVE, -from, -to)
      for i = 1, #near do
        if near[i] == id then return to + #near - i end
      end
      from = to - 1
    end
  end
end

-- Add every distance at which the entry stands now to `holes`, none twice. Returns the first one, nil if there is none,
-- and the drift, carried on to the entries behind.
local function locate(find, id, place, drift, holes, taken)
  if type(place) == "number" then
    local here = find(id, place - drift)
    if not here or taken[here] then return nil, drift end
    taken[here], holes[#holes + 1] = true, here
    return here, place - here
  end
  local first
  for _, distance in ipairs(place) do
    local here = find(id, distance - drift)
    if here and not taken[here] then
      taken[here], holes[#holes + 1] = true, here
      first = first or here
    end
  end
  return first, drift
end

-- Take the elements at these distances out of active: the living ones among the tail's fill the holes, then the
-- tail is cut. O(holes), wherever they lie. `is_hole` has the same distances as its keys. Returns {id, new distance,
-- ...} of those that stood beyond a distance and were moved: only a second copy of an id, far off, makes the tail
-- reach that far.
local function remove(holes, is_hole, beyond)
  local k, moved, deep = #holes, {}, {}
  if k == 0 then return moved end
  for _, d in ipairs(holes) do
    if d > k then deep[#deep + 1] = d end
  end
  if #deep > 0 then
    local tail, n = call("LRANGE", ACTIVE, -k, -1), 0
    for d = 1, k do
      if not is_hole[d] then
        n = n + 1
        local id = tail[k - d + 1]
        call("LSET", ACTIVE, -deep[n], id)
        if d > beyond then moved[#moved + 1], moved[#moved + 2] = id, deep[n] - k end
      end
    end
  end
  call("LTRIM", ACTIVE, 0, -(k + 1))
  return moved
end

-- Which of these locks stand: one EXISTS settles a batch that is all alive or all dead.
local function standing(locks)
  local alive, index = {}, 1
  while index <= #locks do
    local last = math.min(index + 99, #locks)
    local count = call("EXISTS", unpack(locks, index, last))
    for i = index, last do
      alive[i] = count == last - index + 1 or (count > 0 and call("EXISTS", locks[i]) == 1)
    end
    index = last + 1
  end
  return alive
end

-- Recovery -------------------------------------------------------------------------------------------------

local function is_counter(value)
  local digits = not value and "" or string.match(value, "^%-?(%d+)$")
  return digits and #digits <= 15
end

local texts_of = {}
local function text(number)
  local known = texts_of[number] or string.format("%.0f", number)
  texts_of[number] = known
  return known
end

local heavy = false -- whether the last job took long to judge

-- The job's options, as far as they can be read.
local function opts_of(job)
  local length = call("HSTRLEN", job, "opts")
  heavy = length > 2048
  if length == 0 or length > OPTS_LIMIT then return {} end
  local fine, opts = pcall(cjson.decode, call("HGET", job, "opts"))
  return fine and type(opts) == "table" and opts or {}
end

-- The job's own attempts (BullMQ's ports write 0 for "not set"), else the sweeper's.
local function attempts_of(job)
  local attempts = opts_of(job).attempts
  return type(attempts) == "number" and attempts >= 1 and attempts or max_attempts
end

-- A scheduler's job is exempt from the ceiling while the scheduler lives; from 5.58.8 to 5.78.0 whatever its options
-- call a repeated one; before that none. nil = the scheduler's key was not declared.
local function exempt(job, rjk, repeat_key, scheduler)
  if version and version < 5058008 then return false end
  if version and version < 5078001 then return not not opts_of(job)["repeat"] end
  if not rjk then return false end
  local key = repeat_key .. ":" .. rjk
  if scheduler ~= key and scheduler ~= true then return nil end -- true: the whole-queue form, which declares nothing
  return call("EXISTS", key) == 1 or not not call("ZSCORE", repeat_key, rjk)
end

-- What becomes of a job that is marked and has no lock: a letter, and the command that writes it or a text; and the
-- reason, where the script itself fails the job.
local function judge(id, job, finished, repeat_key, scheduler)
  if OWN[id] then return "x", "the id is the name of one of the queue's own keys" end
  if not echomq and string.sub(id, 1, 2) == "0:" then return "g" end -- a marker of BullMQ 4
  local fields = try("HMGET", job, "timestamp", "finishedOn", "stc", echomq and "atm" or "rjk")
  heavy = true
  if fields.err then
    if string.sub(fields.err, 1, 9) == "WRONGTYPE" then return "x", "the job's key holds no hash" end
    error(fields)
  end
  if not (fields[1] or fields[2] or fields[3] or fields[4]) and call("EXISTS", job) == 0 then return "g" end
  if finished then return "g" end
  if fields[2] then return "x", "finishedOn is set, but the job is in neither completed nor failed" end
  if not is_counter(fields[3]) then return "x", "the counter stc is no number" end
  local stalls = (tonumber(fields[3]) or 0) + 1
  local write = {"HSET", job, "stc", text(stalls)}
  heavy = false
  if echomq then
    if not is_counter(fields[4]) then return "x", "the counter atm is no number" end
    local attempts, limit = (tonumber(fields[4]) or 0) + 1, attempts_of(job)
    local reason = stalls > max_stalled and STALLS or (limit and attempts >= limit and ATTEMPTS)
    write[5], write[6] = "atm", text(attempts)
    if not reason then return "r", write end
    write[7], write[8], write[9], write[10] = "failedReason", reason, "finishedOn", text(now)
    return "f", write, reason
  end
  if stalls <= max_stalled then return "r", write end
  local spared = exempt(job, fields[4], repeat_key, scheduler)
  if spared == nil then return "s", fields[4] end
  if spared then return "r", write end
  write[5], write[6] = "defa", STALLS -- the worker that takes it next fails it, and does what belongs to that
  return "f", write
end

-- The first thing that the user's ACL forbids of what a recovery writes; asked before anything is written.
local function forbidden(push, target, job)
  if not redis.acl_check_cmd then return nil end
  local wants = {{push, target, "x"}, {"ZADD", FAILED, "0", "x"}, {"SREM", STALLED, "x"},
    {"LSET", ACTIVE, "-1", "x"}, {"LTRIM", ACTIVE, "0", "-1"}, {"PEXPIRE", LEASE, "1"}, job and {"HSET", job, "x", "x"}}
  for _, want in ipairs(wants) do
    if not redis.acl_check_cmd(unpack(want)) then return want[1] .. " on " .. want[2] end
  end
end

-- An event for each job that left active. Returns how many could not be written.
local function tell(events, stalled, reasons)
  local lost = 0
  local function check(added)
    if type(added) == "table" and added.err then lost = lost + 1 end
  end
  for i, id in ipairs(stalled) do
    if reasons[i] then
      check(try("XADD", events, "*", "event", "failed", "jobId", id, "failedReason", reasons[i], "prev", "active"))
    else
      check(try("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "active"))
      check(try("XADD", events, "*", "event", "stalled", "jobId", id))
    end
  end
  return lost
end

-- Write what was judged. Everything here was validated: none of it can fail but for memory, and that is refused
-- by the server at the first write, the push. Of done: stalled, changes and reasons go together, one each for a job.
local function commit(done, is_hole, beyond, events)
  local push = to_front and "RPUSH" or "LPUSH"
  local target = into_paused and PAUSED or WAIT
  local back, holes, changes = done.back, done.holes, done.changes
  local denied = (#holes > 0 or #done.gone > 0) and forbidden(push, target, changes[1] and changes[1][2])
  if denied then error({err = "NOPERM mqsweep: the user may not run " .. denied .. "; nothing was changed"}) end
  if to_front then -- workers take from the right end: the oldest goes there
    for i = 1, math.floor(#back / 2) do back[i], back[#back - i + 1] = back[#back - i + 1], back[i] end
  end
  if #back > 0 then call(push, target, unpack(back)) end
  for _, id in ipairs(done.failed) do call("ZADD", FAILED, now, id) end
  if #done.gone > 0 then call("SREM", STALLED, unpack(done.gone)) end
  if #changes > 0 then trim(events) end
  for _, change in ipairs(changes) do call(unpack(change)) end
  local moved = remove(holes, is_hole, beyond)
  local concurrency = tonumber(meta[2])
  -- where room was made, for what waited already too: what an earlier batch pushed may have found none
  local waits = #back > 0 or (#holes > 0 and concurrency and call("EXISTS", WAIT) == 1)
  if waits and not meta[1] and (not concurrency or call("LLEN", ACTIVE) < concurrency) then
    try("ZADD", MARKER, 0, "0")
  end
  return tell(events, done.stalled, done.reasons), moved
end

-- Of each entry, oldest first: its id, job and lock keys, place and scheduler key (true = any).
-- Returns consumed, drift, letters, texts, events lost, moved.
local function recover(entries, drift, budget, events, repeat_key, completed)
  local ids, places = entries.ids, entries.places
  local marked, alive = call("SMISMEMBER", STALLED, unpack(ids)), standing(entries.locks)
  local ended, failed_before = call("ZMSCORE", completed, unpack(ids)), call("ZMSCORE", FAILED, unpack(ids))
  local find, late, letters, texts, taken, beyond = finder(places), watch(budget), {}, {}, {}, 0
  local done = {back = {}, failed = {}, gone = {}, holes = {}, stalled = {}, changes = {}, reasons = {}}
  local consumed, asked = 0, false
  for i, id in ipairs(ids) do
    if i > 1 and late(heavy) then break end
    local letter, what, reason
    if marked[i] == 0 then
      letter = "u"
    elseif alive[i] then
      letter = "l"
    else
      letter, what, reason =
        judge(id, entries.jobs[i], ended[i] or failed_before[i], repeat_key, entries.schedulers[i])
    end
    -- A scheduler's key that was not declared must not be touched: go no further, but say which keys are missing.
    asked = asked or letter == "s"
    if letter == "s" or (letter == "x" and not asked) then
      texts[#texts + 1], texts[#texts + 2] = i, what
    end
    if not asked then
      consumed = i
      local found
      if letter == "r" or letter == "f" or letter == "g" then
        found, drift = locate(find, id, places[i], drift, done.holes, taken)
        if found then beyond = math.max(beyond, found) else letter = "m" end
      end
      if found or letter == "l" then done.gone[#done.gone + 1] = id end
      if letter == "r" or letter == "f" then
        local into, n = reason and done.failed or done.back, #done.stalled + 1
        into[#into + 1] = id
        done.stalled[n], done.changes[n], done.reasons[n] = id, what, reason or false
      end
      letters[i] = letter
    end
  end
  local lost, moved = commit(done, taken, beyond, events)
  return consumed, drift + #done.holes, table.concat(letters), texts, lost, moved
end

-- Marks ----------------------------------------------------------------------------------------------------

-- Only what stands in active without a lock at this instant is marked: a mark on a job that is done would rob its
-- next run of its grace.
local function mark(ids, places, locks, drift, budget)
  local alive, find, late = standing(locks), finder(places), watch(budget)
  local letters, fresh, taken = {}, {}, {}
  for i, id in ipairs(ids) do
    if i > 1 and late() then break end
    letters[i] = "l"
    if not alive[i] then
      local found
      found, drift = locate(find, id, places[i], drift, {}, taken)
      letters[i] = found and "k" or "m"
      if found then fresh[#fresh + 1] = id end
    end
  end
  local placed = #fresh > 0 and call("SADD", STALLED, unpack(fresh)) or 0
  return #letters, drift, table.concat(letters), placed
end

-- Mark all of active from a distance to the tail, locked or not, as BullMQ does.
local function cover(from, budget)
  local placed, late = 0, watch(budget)
  while from > 0 do
    local to = math.max(1, from - 499)
    local ids = call("LRANGE", ACTIVE, -from, -to)
    if #ids > 0 then placed = placed + call("SADD", STALLED, unpack(ids)) end
    from = to - 1
    if late() then break end
  end
  return from, placed
end

local function clear(ids, budget)
  local letters, late = {}, watch(budget)
  while #letters < #ids and (#letters == 0 or not late()) do
    local from, gone = #letters, {}
    local there = call("SMISMEMBER", STALLED, unpack(ids, from + 1, math.min(from + 250, #ids)))
    for i, found in ipairs(there) do
      letters[from + i] = found == 1 and "c" or "u"
      if found == 1 then gone[#gone + 1] = ids[from + i] end
    end
    if #gone > 0 then call("SREM", STALLED, unpack(gone)) end
  end
  return table.concat(letters)
end

-- The whole queue ------------------------------------------------------------------------------------------

-- Walk active from the tail: {marked and stalled}, {stalled for the first time}, {marks to take back}.
local function look()
  local marks, any = {}, false
  for _, id in ipairs(call("SMEMBERS", STALLED)) do marks[id], any = "unmet", true end
  local known, new, stale, slot = {}, {}, {}, {}
  local distance, length = 1, call("LLEN", ACTIVE)
  while distance <= length do
    local ids, locks = call("LRANGE", ACTIVE, -(distance + 999), -distance), {}
    for i, id in ipairs(ids) do locks[i] = base .. ":" .. id .. ":lock" end
    local alive = standing(locks)
    for i = #ids, 1, -1 do
      local id = ids[i]
      local mark_of = any and marks[id]
      if not alive[i] then
        local n = slot[id]
        if n then
          if n > 0 then table.insert(known[n].places, distance) end
        elseif mark_of then
          slot[id] = #known + 1
          known[slot[id]] = {id = id, places = {distance}}
        else
          new[#new + 1], slot[id] = id, 0
        end
      elseif mark_of == "unmet" and not mark_all then
        stale[#stale + 1] = id
      end
      if mark_of then marks[id] = "met" end
      distance = distance + 1
    end
  end
  for id, state in pairs(marks) do
    if state == "unmet" then stale[#stale + 1] = id end
  end
  return known, new, stale
end

local function part(list, from, to) return {unpack(list, from, math.min(to, #list))} end

-- What recover takes, of these entries.
local function columns(entries)
  local ids, jobs, locks, places, schedulers = {}, {}, {}, {}, {}
  for i, entry in ipairs(entries) do
    ids[i], jobs[i], schedulers[i] = entry.id, base .. ":" .. entry.id, true
    locks[i], places[i] = jobs[i] .. ":lock", #entry.places > 1 and entry.places or entry.places[1]
  end
  return {ids = ids, jobs = jobs, locks = locks, places = places, schedulers = schedulers}
end

-- The entries from one on, with the new places of those that were moved; oldest first again.
local function rebase(entries, from, moved, drift)
  local rest, new = {}, {}
  for i = from, #entries do rest[#rest + 1] = entries[i] end
  for i = 1, #moved, 2 do
    new[moved[i]] = new[moved[i]] or {} -- an id that stands there twice may have moved twice
    table.insert(new[moved[i]], moved[i + 1] + drift)
  end
  for _, entry in ipairs(rest) do
    for _, distance in ipairs(new[entry.id] or {}) do table.insert(entry.places, distance) end
    table.sort(entry.places)
  end
  table.sort(rest, function(a, b) return a.places[1] < b.places[1] end)
  return rest
end

local function sweep()
  local recovered, failed, kept = {}, {}, {}
  local function reply(status, left)
    if policy.status then return {failed, recovered, status, left, kept} end
    return {failed, recovered}
  end
  local left = call("PTTL", LEASE)
  if left ~= -2 then return reply("throttled", left) end
  call("SET", LEASE, string.format("%.0f", now), "PX", ttl)
  local events, keep_back = base .. ":events", held()
  if mark_all then trim(events) end
  local known, new, stale = look()
  if keep_back then
    for i, entry in ipairs(known) do kept[i] = entry.id end
    known = {}
  end
  local drift, at = 0, 1
  while at <= #known do
    local chunk = part(known, at, at + 199)
    local _, fell, letters, _, _, moved =
      recover(columns(chunk), drift, nil, events, base .. ":repeat", base .. ":completed")
    for i, entry in ipairs(chunk) do
      local into = ({r = recovered, f = failed})[string.sub(letters, i, i)]
      if into then into[#into + 1] = entry.id end
    end
    drift, at = fell, at + #chunk
    if #moved > 0 then known, at = rebase(known, at, moved, drift), 1 end
  end
  for from = 1, #stale, 1000 do call("SREM", STALLED, unpack(part(stale, from, from + 999))) end
  if mark_all then
    cover(call("LLEN", ACTIVE))
  else
    for from = 1, #new, 1000 do call("SADD", STALLED, unpack(part(new, from, from + 999))) end
  end
  return reply(keep_back and "held" or "swept", ttl)
end

-- A batch --------------------------------------------------------------------------------------------------

-- A recovery's entries, from KEYS and ARGV. An id is what its key says, so the two cannot differ.
local function batch_entries(places, schedulers)
  local ids, jobs, locks, keys = {}, {}, {}, {}
  for i = 1, #places do
    jobs[i], locks[i] = KEYS[10 + 2 * i], KEYS[11 + 2 * i]
    ids[i] = string.sub(jobs[i], #base + 2)
  end
  for i, n in pairs(schedulers) do keys[tonumber(i)] = KEYS[11 + 2 * #places + n] end
  return {ids = ids, jobs = jobs, locks = locks, places = places, schedulers = keys}
end

local function batch()
  local token, budget, op, drift = ARGV[6], tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])
  local holder = call("GET", LEASE) or ""
  if op == "lease" and ARGV[9] == "takeover" and holder == ARGV[10] then
    call("SET", LEASE, token, "PX", ttl)
  elseif holder ~= token then
    return {"fenced", holder}
  end
  if not ({lease = 1, recover = 1, mark = 1, cover = 1, clear = 1})[op] then
    return refuse("no such batch: " .. tostring(op))
  end
  -- First of all: who may not do this shall not have done anything else.
  if ttl > 0 then call("PEXPIRE", LEASE, ttl) else call("DEL", LEASE) end
  local consumed, letters, texts, placed, lost, moved = 0, "", {}, 0, 0, {}
  if op == "recover" then
    if held() then return {"held"} end
    local entries = batch_entries(cjson.decode(ARGV[10]), cjson.decode(ARGV[11] or "{}"))
    consumed, drift, letters, texts, lost, moved = recover(entries, drift, budget, KEYS[9], KEYS[10], KEYS[11])
  elseif op == "mark" then
    local ids, locks = {}, {unpack(KEYS, 9)}
    for i, lock in ipairs(locks) do ids[i] = string.sub(lock, #base + 2, -6) end
    consumed, drift, letters, placed = mark(ids, cjson.decode(ARGV[10]), locks, drift, budget)
  elseif op == "cover" then
    if KEYS[9] then trim(KEYS[9]) end
    drift, placed = cover(drift > 0 and drift or call("LLEN", ACTIVE), budget)
  elseif op == "clear" then
    letters, drift = clear({unpack(ARGV, 9)}, budget), 0
    consumed = #letters
  end
  return {"ok", consumed, math.floor(clock() - started), drift or 0, letters, texts, placed, lost, moved}
end

if #ARGV <= 5 then return sweep() end
if #ARGV < 8 then return refuse("a batch takes 8 arguments at least, got " .. #ARGV) end
return batch()
