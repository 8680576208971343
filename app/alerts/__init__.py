"""Objectives and their alerts: definitions, measurement, evaluation with a diagnosis, notification, export to Prometheus."""
