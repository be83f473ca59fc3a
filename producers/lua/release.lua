-- Hand a job back: it is queued again in its old place with what it has published, and the delivery does not
-- count.
-- ARGV: prefix, id, token
-- Returns 1 where it was handed back, 0 where the attempt does not own it any more.
local id, token = ARGV[2], ARGV[3]
local job = job_key(id)
if redis.call('HGET', job, 'token') ~= token then return 0 end
redis.call('HINCRBY', job, 'deliveries', -1)
queue_again(id)
return 1
