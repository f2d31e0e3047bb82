"""Gathers the runs of a sweep into a table and figures: `hcm-scale collect FOLDER`."""

from pathlib import Path

from hcm_scale.commands.arguments import parser


def main(arguments: list[str]) -> str:
    """What the sweep found, as text; the files are in its folder."""
    words = parser("collect", __doc__)
    words.add_argument("folder", type=Path, metavar="FOLDER", help="of a sweep, such as multirun/blogcatalog")
    given = words.parse_args(arguments)
    from hcm_scale.sweep.collect import collect

    return collect(given.folder)
