"""Serves the project with a thread for each request, and the static files of its apps: `serve.py PORT`."""

import os
import sys

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application
from werkzeug.serving import make_server

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

if __name__ == "__main__":
    server = make_server("127.0.0.1", int(sys.argv[1]), StaticFilesHandler(get_wsgi_application()), threaded=True)
    print("serving", flush=True)  # noqa: T201 - the tests wait for it
    server.serve_forever()
