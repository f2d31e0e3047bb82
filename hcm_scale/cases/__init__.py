"""Cases: nodes that stand out and belong together, as one finding."""
