"""When two submissions are equal, and what happens to the second one."""
