"""What a folder of ours holds: `hcm-scale inspect PATH [--verify]`, a run, a graph, labels, samples, scores.

`--verify` reads every byte and compares it with the hash that was written with it.
"""

from pathlib import Path

from hcm_scale.commands.arguments import parser


def main(arguments: list[str]) -> str:
    """What is there, as text; ValueError where it is nothing of ours, FolderError where it is damaged."""
    words = parser("inspect", __doc__)
    words.add_argument("path", type=Path, metavar="PATH", help="a run, or a folder that one wrote")
    words.add_argument("--verify", action="store_true", help="check every byte against its hash")
    given = words.parse_args(arguments)
    if not given.path.is_dir():
        raise ValueError(f"{given.path} is not a folder; inspect takes a run, a graph, labels, samples or scores")
    from hcm_scale.commands.inspected import inspect

    return inspect(given.path, given.verify)
