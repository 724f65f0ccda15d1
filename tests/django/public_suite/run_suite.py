"""Run modules of Django's tests; the last line of the output is JSON: how many ran, and an error for each failure."""

from __future__ import annotations

import json
import sys
from typing import Any

import django
from django.test.runner import DiscoverRunner

django.setup()


class Runner(DiscoverRunner):  # type: ignore[misc] # Django ships no types
    outcome: Any = None

    def suite_result(self, suite: Any, result: Any, **options: Any) -> int:
        self.outcome = result
        return int(super().suite_result(suite, result, **options))


runner = Runner(verbosity=0, interactive=False)
runner.run_tests(sys.argv[1:])
outcome = runner.outcome
failed = {str(test.id()): text.strip().splitlines()[-1] for test, text in outcome.failures + outcome.errors}
print(json.dumps([outcome.testsRun, failed]))  # noqa: T201 - the answer of this script
