-- Submit a job that was given up once more, under a new id: what has ended stays ended.
-- ARGV: prefix, id, new_id
-- Returns the id of the new job, also where an earlier call whose reply was lost has made it; nil where the job is
-- not among the dead letters.
local id, new_id = ARGV[2], ARGV[3]
local job = job_key(id)
local fields = redis.call('HMGET', job, 'requeued_as', 'request', 'queue', 'retention_s', 'group', 'tenant',
  'ttl_ms')
if fields[1] then return fields[1] end
if redis.call('ZREM', dead_key, id) == 0 or not fields[2] then return nil end
write_job(new_id, {
  request = fields[2], queue = fields[3], retention_s = fields[4], group = fields[5], tenant = fields[6],
  handicap = 0, ttl_ms = tonumber(fields[7] or 0),
}, now_ms())
redis.call('HSET', job, 'requeued_as', new_id)
return new_id
