"""Invalid settings of webhooks are refused, and secrets never appear in messages."""

from __future__ import annotations

import base64
import subprocess
import sys
from typing import Any

import pytest

from onejob.errors import ConfigurationError
from onejob.webhooks.settings import SCHEDULE, WebhookSettings
from tests.cases import for_each
from tests.webhooks.receiver import OLDER, SECRET


def read(**given: Any) -> WebhookSettings:
    """Read settings from a Celery configuration."""
    conf = {f"onejob_webhook_{name}": value for name, value in given.items()}
    return WebhookSettings.from_mapping(conf, namespace="shop")


def test_there_are_defaults() -> None:
    """By default webhooks use https on port 443, with ten attempts in three and a half days."""
    assert read() == WebhookSettings(source="urn:onejob:shop", ports=(443,), schedule=SCHEDULE)
    assert (len(SCHEDULE), 75 * 3600 < sum(SCHEDULE) < 84 * 3600) == (9, True)


def test_settings_are_read() -> None:
    """Each setting is read by its name; lists become tuples."""
    given: dict[str, Any] = {
        "secrets": [SECRET], "source": "https://shop.example", "ports": [443, 80], "allow": ["192.0.2.0/24"],
        "schedule": [0, 1.5],
    }  # fmt: skip
    settings = read(**given)
    assert settings.secrets == (SECRET,)
    assert (settings.source, settings.ports, settings.allows_http) == ("https://shop.example", (443, 80), True)
    assert ([str(network) for network in settings.networks], settings.schedule) == (["192.0.2.0/24"], (0, 1.5))


@for_each(
    "given",
    [
        {"secrets": "whsec_x"}, {"secrets": ["whsec_"]}, {"secrets": [base64.b64encode(b"x" * 32).decode()]},
        {"secrets": ["whsec_" + base64.b64encode(b"x" * 23).decode()]},
        {"secrets": ["whsec_" + base64.b64encode(b"x" * 65).decode()]}, {"secrets": ["whsec_\u00fc" + "x" * 40]},
        {"secrets": ["whsec_!" + "x" * 39]}, {"secrets": [b"x" * 32]}, {"secrets": [None]},
        {"submitter_secrets": [SECRET]}, {"submitter_secrets": {"shop": SECRET}},
        {"submitter_secrets": {"shop": [SECRET, "whsec_x"]}}, {"submitter_secrets": {"shop": []}},
        {"submitter_secrets": {"": [SECRET]}}, {"submitter_secrets": {7: [SECRET]}}, {"ports": 443}, {"ports": [0]},
        {"ports": [65536]}, {"ports": ["443"]}, {"ports": [True]}, {"allow": "127.0.0.0/8"},
        {"allow": ["127.0.0.1/8"]}, {"allow": ["localhost"]}, {"allow": [None]}, {"schedule": 5}, {"schedule": [-1]},
        {"schedule": ["5"]}, {"schedule": [float("inf")]}, {"source": "two words"}, {"source": 7},
    ],
)  # fmt: skip
def test_an_invalid_value_is_refused(given: dict[str, Any]) -> None:
    """An invalid value is refused with the name of its setting."""
    with pytest.raises(ConfigurationError, match=f"onejob_webhook_{next(iter(given))}"):
        read(**given)


def test_a_secret_is_not_printed() -> None:
    """Neither an error message nor the repr of the settings contains a secret."""
    with pytest.raises(ConfigurationError) as caught:
        read(secrets=[SECRET, "whsec_short"])
    assert "entry 2" in str(caught.value)
    assert "short" not in str(caught.value)
    assert SECRET not in repr(read(secrets=[SECRET]))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a required package, the error says what to install."""
    monkeypatch.setattr("onejob.webhooks.settings.PACKAGES", ("httpcore2", "no_such_package"))
    with pytest.raises(ConfigurationError, match=r"need no_such_package: pip install \"onejob\[webhooks\]\""):
        read(secrets=[SECRET]).check_usable()


def test_http_packages_are_imported_lazily() -> None:
    """Defining tasks with webhooks imports none of the packages that send them."""
    program = f"""
import sys, celery, onejob
app = celery.Celery("light", broker="memory://", changes={{
    "onejob_store": "sqlite:///unused.db", "onejob_webhook_secrets": [{SECRET!r}]}})

@app.task(name="notify", base=onejob.Task, webhook_url="https://hooks.example/")
def notify(): ...

app.finalize()
assert notify.webhook_url
print(sorted({{"httpcore2", "h11", "standardwebhooks", "fastapi", "pydantic"}} & set(sys.modules)))
"""
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_each_signer_has_its_secrets() -> None:
    """A submitter with secrets of its own is its own signer; the app's secrets sign for all others, if it has any."""
    settings = read(secrets=[SECRET], submitter_secrets={"shop": [OLDER, SECRET]})
    settings.check_usable()
    assert (settings.signer_of("shop"), settings.signer_of("other"), settings.signer_of("")) == ("shop", "", "")
    assert [[*settings.secrets_of(name)] for name in ("shop", "", "other")] == [[OLDER, SECRET], [SECRET], []]
    assert SECRET not in repr(settings)
    settings = read(submitter_secrets={"shop": [SECRET]})
    settings.check_usable("shop")
    for name in ("", "other"):
        with pytest.raises(ConfigurationError, match=r"onejob_webhook_secrets|signing secret"):
            settings.check_usable(name)
