-- End a job if its deadline is over, for a reader who waits for it while no worker is up.
-- ARGV: prefix, id, event_limit
-- Returns 1 where it ended here, else 0.
local id = ARGV[2]
local fields = redis.call('HMGET', job_key(id), 'state', 'deadline_ms')
if (fields[1] ~= 'queued' and fields[1] ~= 'running') or not is_late(fields[2], now_ms()) then return 0 end
expire_job(id, ARGV[3])
return 1
