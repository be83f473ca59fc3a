-- End a job with its worker's result, and with the last delta of its answer where that is still to be written.
-- ARGV: prefix, id, token, state, kind, result, event_limit, number of all deltas, and where the last of them is
-- still to be written: event, completion_tokens
-- Returns 1 where this attempt ended the job, now or in an earlier call whose reply was lost, 2 where the server has
-- lost deltas before, else 0.
local id, token, limit, seq, event = ARGV[2], ARGV[3], ARGV[7], tonumber(ARGV[8]), ARGV[9]
local fields = redis.call('HMGET', job_key(id), 'token', 'ended_by', 'deadline_ms', 'seq')
if fields[2] == token then return 1 end
if fields[1] ~= token then return 0 end
if is_late(fields[3]) then
  expire_job(id, limit)
  return 0
end
local stored = tonumber(fields[4])
if seq > stored + (event and 1 or 0) then return 2 end
if event and seq > stored then
  append_delta(id, seq, event, ARGV[10], limit)
end
-- Only a worker's own end names it: one that lost the job to a cancel must find its writes refused.
end_job(id, ARGV[4], ARGV[5], ARGV[6], limit, token)
return 1
