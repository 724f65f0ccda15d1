"""The worker side of onejob: heartbeat, sweeper, requests and the execution of jobs."""
