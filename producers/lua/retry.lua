-- Have a job that failed for a passing reason tried again, or give it up where it was delivered too often or its
-- deadline comes first.
-- ARGV: prefix, id, token, delay_ms, error (JSON with a message), max_deliveries, event_limit
-- Returns 1 where this attempt owned the job, else 0; one whose deadline is over expires.
local id, token, delay, limit = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[7]
local max_deliveries = tonumber(ARGV[6])
local job = job_key(id)
local fields = redis.call('HMGET', job, 'token', 'deliveries', 'deadline_ms')
if fields[1] ~= token then return 0 end
if is_late(fields[3], now_ms()) then
  expire_job(id, limit)
  return 0
end
local due = now_ms() + delay
local err = cjson.decode(ARGV[5])
if tonumber(fields[2]) >= max_deliveries then
  bury(id, max_deliveries, limit, err.message)
elseif is_late(fields[3], due) then
  err.message = err.message .. '; its deadline comes before another try'
  end_job(id, 'failed', 'error', result_without_answer(id, 'failed', err), limit)
else
  queue_again(id, delay > 0 and due)
end
return 1
