-- Cancel a job in any state. A running job loses its owner here and now: the worker's next write is refused, and
-- the worker is told.
-- ARGV: prefix, id, event_limit
-- Returns the job's state afterwards ('cancelled', or how it had ended before), or nil where there is none.
local id = ARGV[2]
local state = redis.call('HGET', job_key(id), 'state')
if not state then return nil end
if state == 'queued' or state == 'running' then
  tell_owner(id)
  end_job(id, 'cancelled', 'cancelled', result_without_answer(id, 'cancelled'), ARGV[3])
  return 'cancelled'
end
return state
