"""How long operations take, and why, on servers of their own: `python -m bench`; some scripts run alone."""
