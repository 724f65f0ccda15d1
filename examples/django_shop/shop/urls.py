"""The addresses of the shop."""

from django.urls import path
from orders import views

urlpatterns = [path("orders", views.orders)]
