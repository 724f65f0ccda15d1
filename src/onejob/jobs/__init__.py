"""Jobs: their model, their state machine, and their public view."""
