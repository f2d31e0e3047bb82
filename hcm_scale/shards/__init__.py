"""Labelled pairs on disk: Parquet shards and a manifest."""

from hcm_scale.shards.labels import LabelPlan, Labels, RowGroup, open_labels

__all__ = ["LabelPlan", "Labels", "RowGroup", "open_labels"]
