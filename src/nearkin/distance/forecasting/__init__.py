"""Forecast of fine-tuning: steps to a loss or a metric, from a short measurement and recorded runs."""
