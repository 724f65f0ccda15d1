"""The dashboard below a URL: `path("jobs/", include("onejob.django.urls"))`. It needs `onejob[wsgi]`."""

from django.urls import re_path

from onejob.django.dashboard import dashboard_view, without_transaction

urlpatterns = [re_path(r"^(?P<page>.*)$", without_transaction(dashboard_view), name="onejob-dashboard")]
