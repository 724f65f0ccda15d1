"""The addresses of the project: the admin, and the dashboard."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("ops/jobs/", include("onejob.django.urls"))]
