"""Labelled pairs on disk: Parquet shards, one class per row group, and one manifest that makes them exist."""

from hcm_scale.shards.reader import Labels, RowGroup, open_labels
from hcm_scale.shards.schema import LabelPlan

__all__ = ["LabelPlan", "Labels", "RowGroup", "open_labels"]
