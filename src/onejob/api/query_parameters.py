"""Undeclared query parameters are refused, since a mistyped filter would silently return everything."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args, get_origin

from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import Query
from fastapi.security import APIKeyQuery

from onejob.api.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import Request
    from fastapi.dependencies.models import Dependant
    from fastapi.routing import APIRoute

PARAMETER_LIMIT = 50
"""How many query parameters a request may have, since each unknown one is compared with the declared ones."""
NAME_LIMIT = 100
"""The number of characters of an unknown name that are compared and reported."""


class QueryCheck:
    """The check of the query parameters of one route."""

    def __init__(self, route: APIRoute) -> None:
        self._route = route
        self._dependant: Dependant | None = None
        self._declared: Mapping[str, bool] = {}

    def __call__(self, request: Request) -> None:
        """Raise `RequestValidationError` for an undeclared parameter, and for a repeated one that is not a list."""
        query = request.scope.get("query_string")
        if not query:
            return
        if query.count(b"&") >= PARAMETER_LIMIT:
            raise Problem("invalid-request", f"a request must not have more than {PARAMETER_LIMIT} query parameters")
        declared = self._declared_for(request)
        counts = Counter(name for name, _ in request.query_params.multi_items())
        invalid = [(name, _unknown_message(name[:NAME_LIMIT], declared)) for name in counts if name not in declared]
        invalid += [
            (name, f"the query parameter {name!r} is given {count} times, but takes one value")
            for name, count in counts.items()
            if count > 1 and not declared.get(name, True)
        ]
        if invalid:
            errors = [
                {"loc": ("query", name[:NAME_LIMIT]), "msg": msg, "type": "query_parameter"} for name, msg in invalid
            ]
            raise RequestValidationError(errors)

    def _declared_for(self, request: Request) -> Mapping[str, bool]:
        """Return the declared parameters, computed again only if the app that the route is mounted in changes."""
        mounted = request.scope.get("fastapi", {}).get(
            "effective_route_context"
        )  # includes the dependencies of the app
        dependant: Dependant = (mounted or self._route).dependant
        if dependant is not self._dependant:
            self._declared, self._dependant = _declared_parameters(dependant), dependant
        return self._declared


def _unknown_message(name: str, declared: Mapping[str, bool]) -> str:
    nearest = get_close_matches(name, declared, 1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"this path takes {', '.join(sorted(declared)) or 'none'}"
    return f"unknown query parameter {name!r}: {hint}"


def _declared_parameters(dependant: Dependant) -> dict[str, bool]:
    """Return, by the name of each declared query parameter, whether it may be repeated."""
    declared = {
        field.alias: _is_list(field.field_info.annotation)
        for field in get_flat_params(dependant)
        if isinstance(field.field_info, Query)
    }
    return declared | dict.fromkeys(_api_key_names(dependant), False)


def _is_list(hint: Any) -> bool:
    types = [get_origin(part) or part for part in (hint, *get_args(hint))]
    return any(isinstance(each, type) and issubclass(each, list | tuple | set | frozenset) for each in types)


def _api_key_names(dependant: Dependant) -> list[str]:
    """Return the names of the query parameters that carry an API key of the app (`APIKeyQuery`)."""
    own = [dependant.call.model.name] if isinstance(dependant.call, APIKeyQuery) else []
    return own + [name for each in dependant.dependencies for name in _api_key_names(each)]
