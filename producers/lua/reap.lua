-- Do what time has made due: take jobs away from workers whose lease has run out, end jobs whose deadline is
-- over, and queue those again whose second try is due.
-- ARGV: prefix, max_deliveries, count, event_limit
-- Returns {number of jobs taken from workers and queued again, number expired, number whose second try is due}.
local max_deliveries, count, limit = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local now = now_ms()

-- Due jobs whose record is there; where somebody has deleted it, nothing is left of the job.
local function due(key)
  local found = {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, count)) do
    if redis.call('EXISTS', job_key(id)) == 1 then
      found[#found + 1] = id
    else
      redis.call('ZREM', key, id)
    end
  end
  return found
end

local expired = due(deadlines_key)
for _, id in ipairs(expired) do
  expire_job(id, limit)
end

local queued = 0
for _, id in ipairs(due(running_key)) do
  if tonumber(redis.call('HGET', job_key(id), 'deliveries')) >= max_deliveries then
    bury(id, max_deliveries, limit)
  else
    queue_again(id)
    queued = queued + 1
  end
end

local retried = due(delayed_key)
for _, id in ipairs(retried) do
  local fields = redis.call('HMGET', job_key(id), 'queue', 'order')
  redis.call('ZREM', delayed_key, id)
  redis.call('ZADD', queue_key(fields[1]), fields[2], id)
end
return {queued, #expired, #retried}
