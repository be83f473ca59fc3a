-- Shared by all scripts: ARGV[1] is the key prefix. Key names are documented in producers/keys.py.
-- All times come from this server's clock, in milliseconds.
local prefix = ARGV[1]

local function job_key(id) return prefix .. ':job:' .. id end
local function events_key(id) return prefix .. ':events:' .. id end
local function channel(id) return prefix .. ':channel:' .. id end
local function queue_key(name) return prefix .. ':queue:' .. name end
local function group_key(group) return prefix .. ':group:' .. group end
local running_key = prefix .. ':running'
local delayed_key = prefix .. ':delayed'
local deadlines_key = prefix .. ':deadlines'
local dead_key = prefix .. ':dead'
local queued_key = prefix .. ':queued'

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Write one event to the log and to those who listen now. The log keeps about `limit` entries.
local function append_event(id, event, limit)
  redis.call('XADD', events_key(id), 'MAXLEN', '~', limit, '*', 'event', event)
  redis.call('PUBLISH', channel(id), event)
end

-- Write the next delta of an answer; the caller has checked whose it is and that it is the next one.
local function append_delta(id, seq, event, completion_tokens, limit)
  redis.call('HSET', job_key(id), 'seq', seq, 'completion_tokens', completion_tokens)
  append_event(id, event, limit)
end

-- So many more jobs of a tenant are queued.
local function count_queued(tenant, more)
  if redis.call('HINCRBY', queued_key, tenant, more) <= 0 then
    redis.call('HDEL', queued_key, tenant)
  end
end

-- A job enters a queue, or the set of those that wait for a second try. Its tenant has one more queued. Workers that
-- are idle hear of the first one in a queue, and take the others with it. Returns how many have heard.
local function enqueue(id, queue, order, tenant, due)
  count_queued(tenant, 1)
  if due then
    redis.call('ZADD', delayed_key, due, id)
    return 0
  end
  redis.call('ZADD', queue_key(queue), order, id)
  return redis.call('ZCARD', queue_key(queue)) == 1 and redis.call('PUBLISH', prefix .. ':arrivals:' .. queue, '') or 0
end

-- A job leaves the queue, or the set of those that wait for a second try.
local function dequeue(id, queue, tenant)
  local found = redis.call('ZREM', queue_key(queue), id) + redis.call('ZREM', delayed_key, id)
  if found > 0 then count_queued(tenant, -1) end
end

-- Write a new job's record and queue it. Returns how many workers have heard of it.
local function write_job(id, job, now)
  local order = redis.call('INCR', prefix .. ':sequence') + job.handicap
  redis.call('HSET', job_key(id), 'state', 'queued', 'request', job.request, 'queue', job.queue, 'order', order,
    'created_ms', now, 'retention_s', job.retention_s, 'group', job.group, 'tenant', job.tenant, 'attempt', 0,
    'deliveries', 0, 'seq', 0)
  if job.ttl_ms > 0 then
    redis.call('HSET', job_key(id), 'ttl_ms', job.ttl_ms, 'deadline_ms', now + job.ttl_ms)
    redis.call('ZADD', deadlines_key, now + job.ttl_ms, id)
  end
  return enqueue(id, job.queue, order, job.tenant)
end

-- A running job goes back to its old place in its queue, or waits until `due`.
local function queue_again(id, due)
  local job = job_key(id)
  local fields = redis.call('HMGET', job, 'queue', 'order', 'tenant')
  redis.call('ZREM', running_key, id)
  redis.call('HDEL', job, 'token')
  redis.call('HSET', job, 'state', 'queued')
  enqueue(id, fields[1], fields[2], fields[3], due)
end

-- Put a job into a terminal state: the record, the one terminal event, the group's notice, and the clocks
-- after which all of it is gone. The caller has checked that the job has not ended before. `token` is that of the
-- worker that ends it, where one does.
local function end_job(id, state, kind, result, limit, token)
  local job = job_key(id)
  local fields = redis.call('HMGET', job, 'retention_s', 'group', 'queue', 'tenant', 'state', 'deadline_ms')
  local retention = fields[1]
  if fields[5] == 'running' then
    redis.call('ZREM', running_key, id)
    redis.call('HDEL', job, 'token')
  else
    dequeue(id, fields[3], fields[4])
  end
  if fields[6] then redis.call('ZREM', deadlines_key, id) end
  if token then
    redis.call('HSET', job, 'state', state, 'result', result, 'ended_ms', now_ms(), 'ended_by', token)
  else
    redis.call('HSET', job, 'state', state, 'result', result, 'ended_ms', now_ms())
  end
  append_event(id, '{"kind":"' .. kind .. '","result":' .. result .. '}', limit)
  redis.call('EXPIRE', job, retention)
  redis.call('EXPIRE', events_key(id), retention)
  if fields[2] ~= '' then
    redis.call('XADD', group_key(fields[2]), '*', 'id', id, 'state', state)
    redis.call('EXPIRE', group_key(fields[2]), retention)
  end
end

-- A result for a job that ended without its worker saying so.
local function result_without_answer(id, state, err)
  local fields = redis.call('HMGET', job_key(id), 'attempt', 'completion_tokens')
  local result = {
    job_id = id, state = state, attempt = tonumber(fields[1] or 0),
    completion_tokens = tonumber(fields[2] or 0), error = err,
  }
  return cjson.encode(result)
end

-- Tell the worker that runs a job, if one does, that it is not its own any more.
local function tell_owner(id)
  local fields = redis.call('HMGET', job_key(id), 'token', 'worker')
  if fields[1] then redis.call('PUBLISH', prefix .. ':control:' .. fields[2], id) end
end

-- End a job whose time is over.
local function expire_job(id, limit)
  tell_owner(id)
  local ttl = redis.call('HGET', job_key(id), 'ttl_ms') / 1000
  local message = 'the job did not end within its ttl of ' .. ttl .. ' s'
  local err = {code = 'expired', message = message, param = 'ttl', status_code = 408}
  end_job(id, 'expired', 'expired', result_without_answer(id, 'expired', err), limit)
end

-- Whether a job's deadline, if it has one, is over now, or at a given time.
local function is_late(deadline, now)
  return deadline and (now or now_ms()) >= tonumber(deadline)
end

-- Give up a job that was delivered too often, for the reason that its last worker gave, if it gave one.
local function bury(id, max_deliveries, limit, reason)
  local now = now_ms()
  local job = job_key(id)
  local fields = redis.call('HMGET', job, 'worker', 'retention_s')
  reason = reason or ('its worker, ' .. (fields[1] or '') .. ', stopped without finishing it')
  local message = 'gave up after ' .. max_deliveries .. ' deliveries; in the last, ' .. reason
  local err = {code = 'too_many_deliveries', message = message, status_code = 500}
  end_job(id, 'failed', 'error', result_without_answer(id, 'failed', err), limit)
  redis.call('ZREMRANGEBYSCORE', dead_key, '-inf', now)
  redis.call('ZADD', dead_key, now + fields[2] * 1000, id)
  -- The list lasts as long as that one of its jobs whose record lasts longest.
  redis.call('PEXPIREAT', dead_key, redis.call('ZRANGE', dead_key, -1, -1, 'WITHSCORES')[2])
end
