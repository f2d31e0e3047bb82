"""Which of our sources reads a path or URL: `folder`, `matrix` or `tables`, by its name and what lies there."""

from pathlib import Path

from hcm_scale.base.files import MANIFEST

MATRICES = (".mat", ".npz", ".npy")


def kind_of(where: str) -> str:
    """The source that reads what is there; tables where nothing says otherwise.

    >>> kind_of("a/Enron.mat"), kind_of("https://x.org/edges.csv?key=a.mat")
    ('matrix', 'tables')
    """
    path = Path(where.partition("?")[0] if where.startswith("http") else where)
    if (path / MANIFEST).is_file():
        return "folder"
    return "matrix" if path.suffix in MATRICES or (path.is_dir() and any(path.glob("*.npy"))) else "tables"
