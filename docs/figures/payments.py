"""Draws docs/figures/payments.svg from the newest results of `python -m bench payments`."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
WAYS = {
    "hcm_scale, kinds of rows": ("hcm_scale", "#1f5fa8"),
    "Isolation Forest": ("Isolation Forest", "#d98a29"),
    "LOF": ("LOF", "#e0b75a"),
    "GAE (PyGOD)": ("GAE", "#7aa874"),
    "DOMINANT (PyGOD)": ("DOMINANT", "#4d7c58"),
    "degree": ("degree", "#b4bac2"),
}
SCHEMES = ("round", "slow", "fan_in", "fan_out", "scatter", "pass", "limit", "dormant", "partner", "split")


def main() -> None:
    newest = max((ROOT / "bench/results").glob("payments_quick_x86_64_16cores*.jsonl"))
    rows = [json.loads(line) for line in newest.read_text().splitlines()]
    plt.rcParams["svg.hashsalt"] = "payments"
    figure, axes = plt.subplots(figsize=(9.0, 3.2), layout="constrained")
    for number, (way, (label, color)) in enumerate(WAYS.items()):
        worlds = [row for row in rows if row.get("way") == way and row["table"].startswith("world of payments")]
        found = [100.0 * np.mean([row[scheme] for row in worlds]) for scheme in SCHEMES]
        axes.bar(np.arange(len(SCHEMES)) + 0.14 * (number - 2.5), found, 0.13, label=label, color=color)
    axes.set_xticks(np.arange(len(SCHEMES)), [scheme.replace("_", " ") for scheme in SCHEMES])
    axes.set_ylabel("% in the first 2 %")
    axes.set_ylim(0, 104)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=6, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=9)
    figure.savefig(ROOT / "docs/figures/payments.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
