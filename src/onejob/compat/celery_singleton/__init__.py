"""celery-singleton's interface (0.3.1) on onejob's ledger.

`from onejob.compat.celery_singleton import Singleton` replaces `from celery_singleton import Singleton`. Where many
modules import the library by its own name, `install()` makes `import celery_singleton` return this package.
"""

import sys

from onejob.compat.celery_singleton.exceptions import DuplicateTaskError
from onejob.compat.celery_singleton.singleton import Singleton, clear_locks
from onejob.compat.shims import alias

__version__ = "0.3.1"
__all__ = ["DuplicateTaskError", "Singleton", "clear_locks", "install"]


def install(*, share_old_locks: bool = False) -> None:
    """Make `import celery_singleton` and its submodules mean this package, in this process.

    `share_old_locks`: the tasks respect and hold the locks of the library, while processes with either one run side by
    side; the same as `share_old_locks = True` of `Singleton`, or of a task. Raises `ConfigurationError` if the library
    itself has been imported before.
    """
    if share_old_locks:
        Singleton.share_old_locks = True
    alias(sys.modules[__name__], "celery_singleton")
