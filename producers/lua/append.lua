-- Append a delta to a job's event log.
-- ARGV: prefix, id, token, seq, event, completion_tokens, event_limit
-- Returns 1 where the delta is in the log (also when it was there before: a reply can be lost and the
-- write repeated), 0 where the attempt does not own the job any more, 2 where deltas before it are missing: the
-- server has lost them, as a replica may that was promoted.
local id, token, seq, event, limit = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[7]
local fields = redis.call('HMGET', job_key(id), 'token', 'seq', 'deadline_ms')
if fields[1] ~= token then return 0 end
if is_late(fields[3]) then
  expire_job(id, limit)
  return 0
end
local stored = tonumber(fields[2])
if seq <= stored then return 1 end
if seq > stored + 1 then return 2 end
append_delta(id, seq, event, ARGV[6], limit)
return 1
