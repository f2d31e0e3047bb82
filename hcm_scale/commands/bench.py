"""Throughput against the peers: `hcm-scale bench THEME`, from a checkout; `hcm-scale bench --help` lists the themes."""

from hcm_scale.failures import SaidError


def main(arguments: list[str]) -> str:
    """Prints the figures as they come; fails where a claim does not hold."""
    try:
        from bench.__main__ import main as bench
    except ImportError as error:
        raise ValueError(f"bench needs a checkout of the project and its dev extra ({error})") from error
    if bench(arguments) != 0:
        raise SaidError(RuntimeError("a claim did not hold"))
    return ""
