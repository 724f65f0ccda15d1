"""Serves the project under ASGI, with the dashboard beside it at /live-jobs: `serve_asgi.py PORT`."""

import os
import sys

import uvicorn
from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django_app = get_asgi_application()

import onejob  # noqa: E402 - Django comes first
from onejob.django.conf import celery_app  # noqa: E402
from onejob.django.dashboard import authorize  # noqa: E402

pages = onejob.dashboard(celery_app(), authorize=authorize)
application = Starlette(routes=[Mount("/live-jobs", pages), Mount("/", django_app)])

if __name__ == "__main__":
    print("serving", flush=True)  # noqa: T201 - the tests wait for it
    uvicorn.run(application, port=int(sys.argv[1]), lifespan="off", log_config=None)
