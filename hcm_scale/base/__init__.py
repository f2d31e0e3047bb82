"""The ground every room stands on: files, counter-based randomness, progress. Imports no other room."""
