"""Jobs: what they are, which transitions they make, and how they are shown."""
