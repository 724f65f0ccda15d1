"""Events of jobs, and what is made of them: logs and metrics."""
