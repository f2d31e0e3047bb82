"""Attributes become features; dissimilar edges are dropped."""
