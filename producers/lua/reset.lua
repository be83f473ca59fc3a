-- Void what earlier attempts have published: this one starts the job over.
-- ARGV: prefix, id, token, event, event_limit
-- Returns 1 where the job was reset by this attempt, now or before, 0 where the attempt does not own it.
local id, token = ARGV[2], ARGV[3]
local job = job_key(id)
local fields = redis.call('HMGET', job, 'token', 'reset_by')
if fields[1] ~= token then return 0 end
if fields[2] == token then return 1 end
redis.call('HSET', job, 'seq', 0, 'completion_tokens', 0, 'reset_by', token)
append_event(id, ARGV[4], ARGV[5])
return 1
