"""What is compared: each module submits and runs one no-op job with two numbers, in its library's recommended way."""

import os
import sys

LIBRARIES = "ONEJOB_BENCH_LIBRARIES"
"""Environment variable: a folder with libraries that run on our own Celery, so it comes last on the path."""
if folder := os.environ.get(LIBRARIES):
    sys.path.append(folder)
