"""Mini-batches made where the model is, on a GPU; `sampling/` has the same for a CPU."""
