-- Write jobs' records and queue them; a job that exists already is left as it is.
-- ARGV: prefix, then for each job: id, request, queue, retention_s, group, handicap, tenant, ttl_ms
-- A job's place in its queue is that of one submitted `handicap` jobs later. A ttl of 0 never ends.
-- Returns for each job 1 where it is new, 2 where moreover a worker has heard of it, 0 where it exists, -1 where the queue is full, -2 where its tenant's part
-- is, -3 where the id is that of another tenant's job.
local now = now_ms()
local is_limited = redis.call('EXISTS', prefix .. ':limits') == 1

-- What keeps a job out, or nil.
local function refusal(id, queue, tenant)
  local owner = redis.call('HGET', job_key(id), 'tenant')
  if owner then return owner == tenant and 0 or -3 end
  if not is_limited then return end
  local limits = redis.call('HMGET', prefix .. ':limits', 'queue', 'tenant', 'tenant:' .. tenant)
  if limits[1] and redis.call('ZCARD', queue_key(queue)) >= tonumber(limits[1]) then return -1 end
  local quota = limits[3] or limits[2]
  if quota and tonumber(redis.call('HGET', queued_key, tenant) or 0) >= tonumber(quota) then return -2 end
end

local replies = {}
for index = 2, #ARGV, 8 do
  local id, queue, tenant = ARGV[index], ARGV[index + 2], ARGV[index + 6]
  local reply = refusal(id, queue, tenant)
  if not reply then
    local heard = write_job(id, {
      request = ARGV[index + 1], queue = queue, retention_s = ARGV[index + 3], group = ARGV[index + 4],
      handicap = ARGV[index + 5], tenant = tenant, ttl_ms = tonumber(ARGV[index + 7]),
    }, now)
    reply = heard > 0 and 2 or 1
  end
  replies[#replies + 1] = reply
end
return replies
