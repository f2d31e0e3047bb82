"""Labelled pairs on disk: Parquet shards, one class per row group, and one manifest that makes them exist."""

from hcm_scale.shards.labels import LabelPlan, Labels, RowGroup, open_labels

__all__ = ["LabelPlan", "Labels", "RowGroup", "open_labels"]
