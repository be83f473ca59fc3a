-- Take queued jobs for a worker, first submitted first, over all queues that it serves.
-- ARGV: prefix, worker, lease_ms, count, max_deliveries, event_limit, queue...
-- Returns {id, request, attempt, token, waited_ms} for each job taken.
-- The delivery is counted here, before any work starts, so that a job that kills its worker is still counted.
local worker, lease, count = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local max_deliveries, limit = tonumber(ARGV[5]), ARGV[6]
local now = now_ms()
local claimed = {}

local function pop_first()
  local first_queue, first_id, first_order
  for index = 7, #ARGV do
    local head = redis.call('ZRANGE', queue_key(ARGV[index]), 0, 0, 'WITHSCORES')
    if head[1] and (not first_order or tonumber(head[2]) < first_order) then
      first_queue, first_id, first_order = ARGV[index], head[1], tonumber(head[2])
    end
  end
  if first_id then redis.call('ZREM', queue_key(first_queue), first_id) end
  return first_id
end

while #claimed < count do
  local id = pop_first()
  if not id then break end
  local job = job_key(id)
  local fields = redis.call('HMGET', job, 'state', 'request', 'created_ms', 'deliveries', 'seq')
  if fields[1] == 'queued' then
    if tonumber(fields[4]) >= max_deliveries then
      bury(id, max_deliveries, limit)
    else
      local attempt = redis.call('HINCRBY', job, 'attempt', 1)
      local token = worker .. '/' .. attempt
      redis.call('HINCRBY', job, 'deliveries', 1)
      redis.call('HSET', job, 'state', 'running', 'token', token, 'worker', worker, 'seq', 0,
        'completion_tokens', 0)
      redis.call('ZADD', running_key, now + lease, id)
      -- Text of an earlier attempt is void from here on; readers start over.
      if tonumber(fields[5] or 0) > 0 then
        append_event(id, cjson.encode({kind = 'reset', attempt = attempt}), limit)
      end
      append_event(id, cjson.encode({kind = 'started', attempt = attempt, worker = worker}), limit)
      claimed[#claimed + 1] = {id, fields[2], attempt, token, now - tonumber(fields[3])}
    end
  end
end
return claimed
