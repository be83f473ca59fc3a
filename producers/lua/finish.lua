-- End a job with its worker's result.
-- ARGV: prefix, id, token, state, kind, result, event_limit
-- Returns 1 where this attempt ended the job, now or in an earlier call whose reply was lost; else 0.
local id, token = ARGV[2], ARGV[3]
local fields = redis.call('HMGET', job_key(id), 'token', 'ended_by')
if fields[2] == token then return 1 end
if fields[1] ~= token then return 0 end
-- Only a worker's own end names it: one that lost the job to a cancel must find its writes refused.
redis.call('HSET', job_key(id), 'ended_by', token)
end_job(id, ARGV[4], ARGV[5], ARGV[6], ARGV[7])
return 1
