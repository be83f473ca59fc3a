-- Delete a job that was given up, with all that is known of it.
-- ARGV: prefix, id
-- Returns 1 where it was among the dead letters, else 0.
local id = ARGV[2]
if redis.call('ZREM', dead_key, id) == 0 then return 0 end
redis.call('DEL', job_key(id), events_key(id))
return 1
