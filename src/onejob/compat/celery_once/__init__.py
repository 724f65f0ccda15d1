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


def install(*, share_old_locks: bool = False) -> None:
    """Make `import celery_once` and its submodules mean this package, in this process.

    `share_old_locks`: the tasks respect and hold the locks of the library, while processes with either one run side by
    side; the same as `share_old_locks = True` of `QueueOnce`, or of a task. Raises `ConfigurationError` if the library
    itself has been imported before.
    """
    if share_old_locks:
        QueueOnce.share_old_locks = True
    alias(sys.modules[__name__], "celery_once")
