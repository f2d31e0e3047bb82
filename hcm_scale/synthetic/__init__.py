"""Graphs that are made: seeded families of any size, and anomalies planted into a graph."""
