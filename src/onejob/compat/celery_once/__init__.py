"""celery-once's interface (3.0.1) on onejob's ledger.

`from onejob.compat.celery_once import QueueOnce` replaces `from celery_once import QueueOnce`. Where many modules
import the library by its own name, `install()` makes `import celery_once` return this package.
"""

import sys

from onejob.compat.celery_once.helpers import AlreadyQueued
from onejob.compat.celery_once.tasks import QueueOnce
from onejob.compat.shims import alias

__version__ = "3.0.1"
__all__ = ["AlreadyQueued", "QueueOnce", "install"]


def install() -> None:
    """Make `import celery_once` and its submodules mean this package, in this process.

    Raises `ConfigurationError` if the library itself has been imported before.
    """
    alias(sys.modules[__name__], "celery_once")
