"""Attributes become features: rescaled, projected, used to drop dissimilar edges, propagated once."""
