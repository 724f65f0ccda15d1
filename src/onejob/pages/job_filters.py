"""The filters in a URL of the jobs page: the `FILTERS` of `onejob.ledger.job_filters`, and stuck jobs alone."""

from typing import Any

from onejob.jobs.lifecycle import State
from onejob.ledger.job_filters import FILTERS
from onejob.pages.context import Context
from onejob.pages.page_request import PageRequest

SEARCH_SECONDS = 0.1
"""How long one request may search for jobs, beyond its first step."""


def only_stuck(request: PageRequest) -> bool:
    """Return whether a URL selects the stuck jobs alone. Raises `Problem` for an invalid value."""
    return request.choice("stuck", ("", "1")) == "1"


def read_filters(request: PageRequest, context: Context) -> dict[str, Any]:
    """Return the filters of a URL by name, None or empty for a filter that the URL does not have.

    Raises `Problem` for an invalid value, and for a filter that would find redacted values.
    """
    readers = {str: request.text, float: request.at, State: request.states}
    found = {each.name: readers[each.kind](each.name) for each in FILTERS}
    if any(found[each.name] for each in FILTERS if each.reveals):
        context.check_values_shown("searching them by argument, error or identity")
    return found


def filter_text(request: PageRequest) -> str:
    """Return the filters of a URL as the end of a sentence; "" if they select everything."""
    given = [(each.name, request.parameters.getlist(each.name)) for each in FILTERS]
    texts = [f"{name} {' or '.join(filter(None, values))}" for name, values in given if any(values)]
    texts += ["a reason why they are stuck"] if only_stuck(request) else []
    return f" with {' and '.join(texts)}" if texts else ""
