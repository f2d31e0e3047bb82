"""Compares all files that two checkouts write: `python tests/same_bytes.py BEFORE [AFTER [NAME ...]]`.

Each configuration below runs in both checkouts, on this machine and with the same seed and threads; every array, table
and sample must be equal byte for byte, and every JSON value but times and keys. Prints what differs and exits with 1,
else prints how many files are equal. `test_same_bytes.py` compares with the previous commit in the gate.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

SHORT = ["posterior.burn_in_steps=20", "posterior.num_samples=3", "posterior.thin_steps=4"]
SHORT += [
    "posterior.checkpoint_every=16",
    "model.width=32",
    "model.head_width=32",
    "world.threads=2",
    "world.device=cpu",
]
GRAPH = ["graph=community", "graph.num_nodes=1500", "graph.num_attributes=12", "inject=paper", "inject.num_cliques=3"]
CONFIGURATIONS = {
    "defaults": [*GRAPH],
    "views": [
        *GRAPH,
        "score.rank_by=strange",
        "model.num_layers=3",
        "sampling.fan_out=[7,9]",
    ],
    "paper": [*GRAPH, "score=paper", "hops=all", "posterior=sgld", "sampling=full_batch", "attributes.scale=none"],
    "sampled": [
        *GRAPH,
        "model=sage",
        "sampling.fan_out=[5]",
        "purify=jaccard",
    ],
    "tables": [
        "graph=tables",
        "graph.path={data}/edges.csv",
        "graph.nodes={data}/nodes.csv",
        "attributes.scale=normal",
    ],
    "directed": ["graph=matrix", "graph.path={data}/graph.npz", "graph.directed=true", "attributes=log1p_pca"],
    "grid": ["graph=grid", "graph.num_nodes=900", "posterior=adam"],
    "ranks": [*GRAPH, "world.processes=2", "world.threads=1"],
}
CLOCKS = ("seconds", "peak_rss_bytes", "pairs_per_second", "rss_bytes", "date", "version", "key", "folder", "made_from")
CLOCKS += ("seal",)  # the hash of all this
IGNORED = ("stages.json", "config.json", "log", "*.log", "job.json", "world.json", "*.html", "*.lock")


def write_data(folder: Path) -> None:
    """A small table pair and a directed matrix, always the same."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 400, (1600, 2))
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"n{u},n{v}\n" for u, v in pairs))
    lines = (f"n{i},{rng.normal():.4f},{'abc'[i % 3]},{rng.integers(0, 9)}\n" for i in range(400))
    (folder / "nodes.csv").write_text("id,size,colour,count\n" + "".join(lines))
    x = rng.poisson(0.3, (400, 40)).astype(np.float32)
    np.savez(folder / "graph.npz", edge_index=pairs.T, x=x)


RUNS = """
import json, sys
from hcm_scale.cli.main import main
sys.exit(max(main(words) for words in json.load(sys.stdin)))
"""


def run(checkout: Path, names: Sequence[str], data: Path, out: Path, changed: Sequence[str] = ()) -> None:
    """Runs configurations of a checkout, in one process, each into a folder of its name; `changed` are more options."""
    fixed = [*SHORT, "graph.name=same"]
    filled = {name: [option.format(data=data) for option in CONFIGURATIONS[name]] for name in names}
    words = [["run", *fixed, *filled[name], f"run_dir={out / name}", *changed] for name in names]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "2"}
    command = {"cwd": checkout, "env": environment, "input": json.dumps(words), "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", RUNS], **command)
    if done.returncode:
        raise SystemExit(f"{checkout}: {', '.join(names)} failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def artifacts(run_dir: Path) -> dict[str, Any]:
    """Relative path -> content, comparable."""
    found = {}
    for path in sorted(run_dir.rglob("*")):
        name = str(path.relative_to(run_dir))
        if path.is_file() and not any(path.match(pattern) for pattern in IGNORED):
            found[name] = content(path)
            if name.startswith("records/"):  # hashes there are of files with clocks in them
                found[name] = {key: value for key, value in found[name].items() if key != "files"}
    return found


def content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return {name: value.tobytes() for name, value in load_file(path).items()}
    if path.suffix == ".json":
        return timeless(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return [timeless(json.loads(line)) for line in path.read_text().splitlines()]
    return path.read_bytes()


def timeless(value: Any) -> Any:
    """A JSON value without what a clock or a key decides."""
    if isinstance(value, dict):
        return {name: timeless(item) for name, item in value.items() if name not in CLOCKS and name != "stages"}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def compare(before: Path, after: Path) -> tuple[int, list[str]]:
    """How many files two runs have in common, and a line for each that differs."""
    one, other = artifacts(before), artifacts(after)
    shared = one.keys() & other.keys()
    lines = [f"differs: {name}" for name in sorted(shared) if one[name] != other[name]]
    lines += [f"only {'before' if name in one else 'after'}: {name}" for name in sorted(one.keys() ^ other.keys())]
    return len(shared), lines


def main() -> int:
    checkouts = [Path(argument).resolve() for argument in sys.argv[1:3]]
    checkouts += [Path(__file__).resolve().parents[1]] * (2 - len(checkouts))
    num_equal, failed, names = 0, False, sys.argv[3:] or [*CONFIGURATIONS]
    with tempfile.TemporaryDirectory(prefix="same-bytes-") as name:
        scratch = Path(name)
        write_data(scratch)
        for side, checkout in zip(("before", "after"), checkouts, strict=True):
            run(checkout, names, scratch, scratch / side)
        for name in names:
            shared, lines = compare(scratch / "before" / name, scratch / "after" / name)
            num_equal, failed = num_equal + shared, failed or bool(lines)
            print(f"{name:<10} {shared} files in both", *lines, sep="\n    " if lines else " ", flush=True)
    print("different" if failed else f"{num_equal} files are equal")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
