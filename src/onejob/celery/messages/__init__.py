"""The messages of jobs: their content, their routes, and their publication."""
