-- Take jobs away from workers whose lease has run out: queue them again, or give them up.
-- ARGV: prefix, max_deliveries, count, event_limit
-- Returns the ids queued again.
local max_deliveries, limit = tonumber(ARGV[2]), ARGV[4]
local expired = redis.call('ZRANGEBYSCORE', running_key, '-inf', now_ms(), 'LIMIT', 0, ARGV[3])
local queued = {}
for _, id in ipairs(expired) do
  local job = job_key(id)
  local fields = redis.call('HMGET', job, 'state', 'queue', 'order', 'deliveries')
  redis.call('ZREM', running_key, id)
  if fields[1] == 'running' then
    if tonumber(fields[4]) >= max_deliveries then
      bury(id, max_deliveries, limit)
    else
      redis.call('HSET', job, 'state', 'queued')
      redis.call('HDEL', job, 'token')
      redis.call('ZADD', queue_key(fields[2]), fields[3], id)
      queued[#queued + 1] = id
    end
  end
end
return queued
