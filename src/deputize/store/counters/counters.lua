-- Counters shared by replicas: store/counters/redis.py. Time is Redis's own, so that replicas agree on it.
--
-- A window is one list: entries "part:weight", oldest first, and behind them their sum. Everything a call needs is at one
-- of the two ends, so it costs the same however much is counted. A slot is a member of a sorted set, scored by its end.
-- ARGV[1] is "take" or "settle"; then, for each key, five words as each of the two asks for.

local PARTS, LOOK_AHEAD = 1000, 200
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]

local function whole(number)
  return string.format("%.0f", number)
end

local function part_of(moment, span)
  return math.floor(moment / (span / PARTS))
end

local function read(entry)
  local part, weight = string.match(entry, "^(%d+):(%d+)$")
  return tonumber(part), tonumber(weight)
end

-- The window's sum, once everything that is over has left it.
local function used_of(key, span)
  local total = tonumber(redis.call("LINDEX", key, -1) or "0")
  local last, before = part_of(now, span) - PARTS - 1, total
  while true do
    local first = redis.call("LINDEX", key, 0)
    local part, weight = read(first or "")
    if not part or part > last then break end
    redis.call("LPOP", key)
    total = total - weight
  end
  if total ~= before then redis.call("LSET", key, -1, whole(total)) end
  return total
end

local function add(key, span, weight)
  local part = part_of(now, span)
  local sum = redis.call("LINDEX", key, -1)
  local total = whole(tonumber(sum or "0") + weight)
  local newest, held = read(redis.call("LINDEX", key, -2) or "")
  if newest and newest >= part then
    redis.call("LSET", key, -2, whole(newest) .. ":" .. whole(held + weight))
    redis.call("LSET", key, -1, total)
  else
    local entry = whole(part) .. ":" .. whole(weight)
    if sum then
      redis.call("LSET", key, -1, entry)
      redis.call("RPUSH", key, total)
    else
      redis.call("RPUSH", key, entry, total)
    end
  end
  redis.call("PEXPIRE", key, math.ceil(span / 1000) + math.ceil(span / 1000 / PARTS) + 1)
end

local function take_off(key, span, weight, moment)
  local wanted = part_of(moment, span)
  for place = -2, -PARTS - 2, -1 do
    local part, held = read(redis.call("LINDEX", key, place) or "")
    if not part or part < wanted then return end
    if part == wanted then
      local less = math.min(weight, held)
      redis.call("LSET", key, place, whole(part) .. ":" .. whole(held - less))
      redis.call("LSET", key, -1, whole(tonumber(redis.call("LINDEX", key, -1)) - less))
      return
    end
  end
end

-- Milliseconds until so much of the window is over.
local function wait_for(key, span, need)
  local freed = 0
  for _, entry in ipairs(redis.call("LRANGE", key, 0, LOOK_AHEAD - 1)) do
    local part, weight = read(entry)
    freed = freed + (weight or 0)
    if part and freed >= need then
      return math.max(math.ceil(((part + PARTS + 1) * (span / PARTS) - now) / 1000), 1)
    end
  end
  return math.ceil(span / 1000)
end

local function take()
  for place, key in ipairs(KEYS) do
    local at = place * 5 - 3
    local kind, limit, span = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    if kind == "slot" then
      redis.call("ZREMRANGEBYSCORE", key, "-inf", now)
      local used = redis.call("ZCARD", key)
      if used >= limit then return { place, now, used, 0 } end
    else
      local used = used_of(key, span)
      local need = used + math.max(tonumber(ARGV[at + 3]), 1) - limit
      if need > 0 then return { place, now, used, wait_for(key, span, need) } end
    end
  end
  for place, key in ipairs(KEYS) do
    local at = place * 5 - 3
    local kind, span, weight = ARGV[at], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    if kind == "slot" then
      redis.call("ZADD", key, whole(now + span), ARGV[at + 4])
      local left, needed = redis.call("PTTL", key), math.ceil(span / 1000) + 1
      if left < needed then redis.call("PEXPIRE", key, needed) end
    elseif weight > 0 then
      add(key, span, weight)
    end
  end
  return { 0, now, 0, 0 }
end

local function settle()
  for place, key in ipairs(KEYS) do
    local at = place * 5 - 3
    local kind, span, weight = ARGV[at], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    if kind == "slot" then
      redis.call("ZREM", key, ARGV[at + 4])
    elseif weight > 0 then
      add(key, span, weight)
    elseif weight < 0 then
      take_off(key, span, -weight, tonumber(ARGV[at + 1]))
    end
  end
  return { 0, now, 0, 0 }
end

return ARGV[1] == "take" and take() or settle()
