#!/usr/bin/env bash
# celery 5.7.0 with kombu 5.7.0 on Python 3.11 to 3.13 (celery 5.6.3 with kombu 5.6.2 is right), seen 2026-11-28.
# Expected: `pip install "celery[zstd]"` is what `task_compression = "zstd"` needs: an extra of that name installs it.
# Happens: the extra installs `zstandard`, which kombu 5.7 no longer imports: it takes `backports.zstd`, or Python
#   3.14's own `compression.zstd`. So the extra installs a package that nothing uses, and each submission raises
#   KeyError.
# Means: an upgrade to 5.7 stops each producer with this setting, and its workers cannot read what others compressed.
#   Install `backports.zstd`, too.
. "$(dirname "$0")/lib.sh"

module send <<'PY'
import celery
import kombu

app = celery.Celery(broker="memory://")
app.conf.task_compression = "zstd"
try:
    app.send_task("task")
    outcome = "sent"
except KeyError as error:
    outcome = repr(error)
print(f"celery {celery.__version__}, kombu {kombu.__version__}: {outcome}")
PY

packages 'celery[zstd]==5.6.3' kombu==5.6.2
observe <<<'import send'
expect <<<'celery 5.6.3, kombu 5.6.2: sent'

packages 'celery[zstd]==5.7.0' kombu==5.7.0
observe <<<'import send'
expect <<<"celery 5.7.0, kombu 5.7.0: KeyError('zstd')"

packages 'celery[zstd]==5.7.0' kombu==5.7.0 backports.zstd
observe <<<'import send'
expect <<<'celery 5.7.0, kombu 5.7.0: sent'
