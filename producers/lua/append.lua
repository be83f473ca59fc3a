-- Append a delta to a job's event log.
-- ARGV: prefix, id, token, seq, event, completion_tokens, event_limit
-- Returns 1 where the delta is in the log (also when it was there before: a reply can be lost and the
-- write repeated), 0 where the attempt does not own the job any more.
local id, token, seq, event = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local job = job_key(id)
local fields = redis.call('HMGET', job, 'token', 'seq')
if fields[1] ~= token then return 0 end
if seq <= tonumber(fields[2]) then return 1 end
redis.call('HSET', job, 'seq', seq, 'completion_tokens', ARGV[6])
append_event(id, event, ARGV[7])
return 1
