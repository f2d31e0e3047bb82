"""Seeded graphs of any size, and planted anomalies."""
