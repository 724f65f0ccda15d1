-- in: :job_id :leader (of that job, or null) :submission
-- out: the receipt of this submission, if it has met one of the two before
select * from receipts where job_id in (:job_id, :leader) and submission = :submission
