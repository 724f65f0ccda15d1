job_id, seq, at, event, state, attempt, node, detail
