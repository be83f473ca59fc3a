-- Extend the leases of a worker's jobs.
-- ARGV: prefix, lease_ms, then id and token of each job
-- Returns the places (1, 2, ...) of the jobs that the worker does not own any more. One that it has just
-- ended itself is not among them.
local lease = tonumber(ARGV[2])
local now = now_ms()
local lost = {}
for index = 3, #ARGV, 2 do
  local id, token = ARGV[index], ARGV[index + 1]
  local fields = redis.call('HMGET', job_key(id), 'token', 'ended_by')
  if fields[1] == token then
    redis.call('ZADD', running_key, now + lease, id)
  elseif fields[2] ~= token then
    lost[#lost + 1] = (index - 1) / 2
  end
end
return lost
