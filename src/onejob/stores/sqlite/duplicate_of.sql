-- in: :job_id :follows_id (of that job, or null) :submission_nonce
-- out: the duplicate of this submission, if it has met one of the two before
select * from duplicates where job_id in (:job_id, :follows_id) and submission_nonce = :submission_nonce
