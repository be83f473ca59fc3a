-- Hand jobs back in order: they are queued again in their old place, and the delivery does not count.
-- ARGV: prefix, then id and token of each job
-- Returns how many were handed back.
local released = 0
for index = 2, #ARGV, 2 do
  local id, token = ARGV[index], ARGV[index + 1]
  local job = job_key(id)
  local fields = redis.call('HMGET', job, 'token', 'queue', 'order')
  if fields[1] == token then
    redis.call('HSET', job, 'state', 'queued')
    redis.call('HDEL', job, 'token')
    redis.call('HINCRBY', job, 'deliveries', -1)
    redis.call('ZREM', running_key, id)
    redis.call('ZADD', queue_key(fields[2]), fields[3], id)
    released = released + 1
  end
end
return released
