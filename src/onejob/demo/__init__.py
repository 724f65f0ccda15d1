"""`onejob demo`: the double click, a killed worker and the resumed job, with no server to install."""
