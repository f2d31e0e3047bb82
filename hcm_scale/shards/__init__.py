"""Labelled pairs on disk: Parquet shards, one class per row group, and a manifest, written last."""

from hcm_scale.shards.labels import LabelPlan, Labels, RowGroup, open_labels

__all__ = ["LabelPlan", "Labels", "RowGroup", "open_labels"]
