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


def install() -> None:
    """Make `import celery_singleton` and its submodules mean this package, in this process.

    Raises `ConfigurationError` if the library itself has been imported before.
    """
    alias(sys.modules[__name__], "celery_singleton")
