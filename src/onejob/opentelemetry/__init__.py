"""Traces and metrics of jobs for OpenTelemetry."""
