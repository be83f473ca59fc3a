-- Take queued jobs for a worker, in the order of their places, over all queues that it serves.
-- ARGV: prefix, worker, model, lease_ms, count, max_deliveries, event_limit, queue...
-- Returns {id, request, attempt, token, waited_ms, seq, deliveries} for each job taken; `seq` is the number of
-- deltas that an earlier attempt has published.
-- The delivery is counted here, before any work starts, so that a job that kills its worker is still counted.
local worker, model, lease, count = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local max_deliveries, limit = tonumber(ARGV[6]), ARGV[7]
local now = now_ms()
local started = '{"kind":"started","worker":' .. cjson.encode(worker) .. ',"model":' .. cjson.encode(model)
local claimed, taken_of_tenant = {}, {}

-- The next `wanted` jobs over all queues, as {id, queue}.
local function first_queued(wanted)
  local heads, at, merged = {}, {}, {}
  for index = 8, #ARGV do
    heads[index] = redis.call('ZRANGE', queue_key(ARGV[index]), 0, wanted - 1, 'WITHSCORES')
    at[index] = 1
  end
  while #merged < wanted do
    local first, first_order
    for index = 8, #ARGV do
      local order = tonumber(heads[index][at[index] + 1])
      if order and (not first_order or order < first_order) then
        first, first_order = index, order
      end
    end
    if not first then break end
    merged[#merged + 1] = {heads[first][at[first]], ARGV[first]}
    at[first] = at[first] + 2
  end
  return merged
end

local function take(id, queue)
  local job = job_key(id)
  local fields = redis.call('HMGET', job, 'state', 'request', 'created_ms', 'deliveries', 'seq', 'tenant',
    'deadline_ms', 'attempt')
  if fields[1] ~= 'queued' then
    redis.call('ZREM', queue_key(queue), id)
  elseif is_late(fields[7], now) then
    expire_job(id, limit)
  elseif tonumber(fields[4]) >= max_deliveries then
    bury(id, max_deliveries, limit)
  else
    local attempt, deliveries, seq = fields[8] + 1, fields[4] + 1, tonumber(fields[5])
    local token = worker .. '/' .. attempt
    redis.call('ZREM', queue_key(queue), id)
    taken_of_tenant[fields[6]] = (taken_of_tenant[fields[6]] or 0) + 1
    redis.call('HSET', job, 'state', 'running', 'token', token, 'worker', worker, 'attempt', attempt, 'deliveries',
      deliveries)
    redis.call('ZADD', running_key, now + lease, id)
    append_event(id, started .. ',"attempt":' .. attempt .. ',"seq":' .. seq .. '}', limit)
    claimed[#claimed + 1] = {id, fields[2], attempt, token, now - tonumber(fields[3]), seq, deliveries}
  end
end

repeat
  -- Whatever becomes of them, they are in no queue afterwards.
  local queued = first_queued(count - #claimed)
  for _, job in ipairs(queued) do
    take(job[1], job[2])
  end
until #queued == 0 or #claimed == count
for tenant, taken in pairs(taken_of_tenant) do
  count_queued(tenant, -taken)
end
return claimed
