"""What the shims share: imports by the name of the replaced library, and notices where a shim keeps another promise."""

from __future__ import annotations

import pkgutil
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from onejob.errors import ConfigurationError
from onejob.observability.logs import log_warning

if TYPE_CHECKING:
    from types import ModuleType


def alias(package: ModuleType, name: str) -> None:
    """Make `import <name>`, and imports of its submodules, return `package` and its submodules in this process.

    A repeated call does nothing. Raises `ConfigurationError` if the library of that name has been imported already:
    then some modules use its classes and others would use ours.
    """
    loaded = sys.modules.get(name)
    if loaded is not None and loaded is not package:
        where = getattr(loaded, "__file__", None) or "an unknown place"
        msg = (
            f"{name} was imported from {where} before {package.__name__}.install() was called: call install() first, "
            "for example at the top of the module that creates the Celery app"
        )
        raise ConfigurationError(msg)
    sys.modules[name] = package
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        sys.modules[name + module.name.removeprefix(package.__name__)] = import_module(module.name)


def import_class(path: object, name: str, package: str) -> Any:
    """Return the class at a dotted path; a path below the library `name` is one below our `package`.

    What is no string is returned as it is. Raises `ConfigurationError` for a path that cannot be imported.
    """
    if not isinstance(path, str):
        return path
    module, _, attribute = path.rpartition(".")
    if module == name or module.startswith(f"{name}."):
        module = package + module.removeprefix(name)
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"the backend class {path!r} cannot be imported: {error}. Write the full path of a class"
        raise ConfigurationError(msg) from error


@cache
def notice_once(text: str) -> None:
    """Log a warning; a repeated call with the same text does nothing.

    It is a log record and no `warnings.warn`, which a program that turns warnings into errors would not survive.
    """
    log_warning("%s", text)
