"""onejob in Django: an app with settings, migrations, admin and commands, and a backend for `django.tasks`."""
