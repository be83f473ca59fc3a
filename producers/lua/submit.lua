-- Write a job's record and queue it; a job that exists already is left as it is.
-- ARGV: prefix, id, request, queue, retention_s, group, handicap
-- The job's place in its queue is that of a job submitted `handicap` jobs later.
-- Returns 1 where the job is new, else 0.
local id, request, queue, retention, group = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if redis.call('EXISTS', job_key(id)) == 1 then return 0 end
local order = redis.call('INCR', prefix .. ':sequence') + tonumber(ARGV[7])
redis.call('HSET', job_key(id), 'state', 'queued', 'request', request, 'queue', queue, 'order', order,
  'created_ms', now_ms(), 'retention_s', retention, 'group', group, 'attempt', 0, 'deliveries', 0)
redis.call('ZADD', queue_key(queue), order, id)
return 1
