-- Shared by all scripts: ARGV[1] is the key prefix. Key names are documented in producers/keys.py.
-- All times come from this server's clock, in milliseconds.
local prefix = ARGV[1]

local function job_key(id) return prefix .. ':job:' .. id end
local function events_key(id) return prefix .. ':events:' .. id end
local function channel(id) return prefix .. ':channel:' .. id end
local function queue_key(name) return prefix .. ':queue:' .. name end
local function group_key(group) return prefix .. ':group:' .. group end
local running_key = prefix .. ':running'
local dead_key = prefix .. ':dead'

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Write one event to the log and to those who listen now. The log keeps about `limit` entries.
local function append_event(id, event, limit)
  redis.call('XADD', events_key(id), 'MAXLEN', '~', limit, '*', 'event', event)
  redis.call('PUBLISH', channel(id), event)
end

-- Put a job into a terminal state: the record, the one terminal event, the group's notice, and the clocks
-- after which all of it is gone. The caller has checked that the job has not ended before.
local function end_job(id, state, kind, result, limit)
  local job = job_key(id)
  local fields = redis.call('HMGET', job, 'retention_s', 'group', 'queue')
  local retention = tonumber(fields[1])
  redis.call('ZREM', running_key, id)
  redis.call('ZREM', queue_key(fields[3]), id)
  redis.call('HSET', job, 'state', state, 'result', result, 'ended_ms', now_ms())
  redis.call('HDEL', job, 'token')
  append_event(id, '{"kind":"' .. kind .. '","result":' .. result .. '}', limit)
  redis.call('EXPIRE', job, retention)
  redis.call('EXPIRE', events_key(id), retention)
  if fields[2] and fields[2] ~= '' then
    redis.call('XADD', group_key(fields[2]), '*', 'id', id, 'state', state)
    redis.call('EXPIRE', group_key(fields[2]), retention)
  end
end

-- A result for a job that ended without its worker saying so.
local function result_without_answer(id, state, code, message)
  local fields = redis.call('HMGET', job_key(id), 'attempt', 'completion_tokens')
  local result = {
    job_id = id, state = state, attempt = tonumber(fields[1] or 0),
    completion_tokens = tonumber(fields[2] or 0),
  }
  if code then result.error = {code = code, message = message} end
  return cjson.encode(result)
end

-- Give up a job that was delivered too often.
local function bury(id, max_deliveries, limit)
  local now = now_ms()
  local worker = redis.call('HGET', job_key(id), 'worker') or ''
  local message = 'gave up after ' .. max_deliveries .. ' deliveries; the last worker, ' .. worker
    .. ', stopped without finishing it'
  end_job(id, 'failed', 'error', result_without_answer(id, 'failed', 'too_many_deliveries', message), limit)
  redis.call('ZREMRANGEBYSCORE', dead_key, '-inf', now)
  redis.call('ZADD', dead_key, now + redis.call('HGET', job_key(id), 'retention_s') * 1000, id)
  -- The list lasts as long as that one of its jobs whose record lasts longest.
  redis.call('PEXPIREAT', dead_key, redis.call('ZRANGE', dead_key, -1, -1, 'WITHSCORES')[2])
end
