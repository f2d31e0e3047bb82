"""Capped hop counts from many sources, by bit-parallel BFS."""

from hcm_scale.hops.label import HopBlock, choose_sources, label_hops, largest_usable_classes

__all__ = ["HopBlock", "choose_sources", "label_hops", "largest_usable_classes"]
