"""Undeclared query parameters are refused: a mistyped filter would filter nothing, and nobody would see it."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args, get_origin

from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import Query
from fastapi.security import APIKeyQuery

if TYPE_CHECKING:
    from fastapi import Request
    from fastapi.dependencies.models import Dependant
    from fastapi.routing import APIRoute

NAME_LIMIT = 100
"""Characters of an unknown name that are looked at and shown."""


def check_query(request: Request, route: APIRoute) -> None:
    """Raise `RequestValidationError` for an undeclared query parameter, and for a single one that is repeated."""
    if not request.scope.get("query_string"):
        return
    declared = _declared(request, route)
    given = Counter(name for name, _ in request.query_params.multi_items())
    wrong = [(name, _unknown(name[:NAME_LIMIT], declared)) for name in given if name not in declared]
    wrong += [
        (name, f"the query parameter {name!r} is given {count} times, and has one value")
        for name, count in given.items()
        if count > 1 and not declared.get(name, True)
    ]
    if wrong:
        errors = [{"loc": ("query", name[:NAME_LIMIT]), "msg": why, "type": "query_parameter"} for name, why in wrong]
        raise RequestValidationError(errors)


def _unknown(name: str, declared: dict[str, bool]) -> str:
    nearest = get_close_matches(name, declared, 1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"this path takes {', '.join(sorted(declared)) or 'none'}"
    return f"unknown query parameter {name!r}: {hint}"


def _declared(request: Request, route: APIRoute) -> dict[str, bool]:
    """Return the names of the declared query parameters, and whether each may be repeated."""
    mounted = request.scope.get("fastapi", {}).get("effective_route_context")  # has the app's own dependencies, too
    dependant: Dependant = (mounted or route).dependant
    found = {
        each.alias: _is_list(each.field_info.annotation)
        for each in get_flat_params(dependant)
        if isinstance(each.field_info, Query)
    }
    return found | dict.fromkeys(_keys(dependant), False)


def _is_list(hint: Any) -> bool:
    kinds = [get_origin(part) or part for part in (hint, *get_args(hint))]
    return any(isinstance(kind, type) and issubclass(kind, list | tuple | set | frozenset) for kind in kinds)


def _keys(dependant: Dependant) -> list[str]:
    """Return the names of the query parameters in which an app expects its API keys."""
    own = [dependant.call.model.name] if isinstance(dependant.call, APIKeyQuery) else []
    return own + [name for each in dependant.dependencies for name in _keys(each)]
