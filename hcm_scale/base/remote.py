"""URLs as file systems: s3:// and gs:// by pyarrow, https:// and what else fsspec knows by the extra `remote`.

Credentials, regions and endpoints are those of the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ~/.aws,
GOOGLE_APPLICATION_CREDENTIALS, ...): none stands in an option, since options are kept in the run's folder. What a
library raises becomes one line that names the option.
"""

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_WORD = r"[^\s=&;]"
_SECRETS = (  # of a URL: user and password, of which a database's may hold any sign; a token in the place of a user
    (re.compile(r"(\b(?:postgres|postgresql|mysql|redis)://[^\s:/?#@]*:)[^\s'\"]*@", re.I), r"\1***@"),
    (re.compile(r"(://[^\s:/?#@]*:)[^\s/?#'\"]+@"), r"\1***@"),
    (re.compile(r"(\bhttps?://)[^\s:/?#@]+@", re.I), r"\1***@"),
)
_PARAMETER = re.compile(rf"([?&;#]({_WORD}+)=)[^\s&;'\"]+")
_SECRET_NAME = re.compile(r".*(pass|pwd|token|secret|sig|key|cred|auth|jwt|session|bearer).*|code|sas|sid", re.I)
_PASSWORD = re.compile(
    r"""(\b(?:(?:ssl)?passw(?:or)?d|pwd|AccountKey)\s*=\s*)(?:\\?'+[^']+'+|[^\s'"&;]+)""", re.I
)  # as libpq has it
_OF_ARROW = ("s3", "gs", "gcs", "file")
_SAID = {
    "NO_SUCH_BUCKET": "there is no such bucket",
    "NoSuchBucket": "there is no such bucket",
    "ACCESS_DENIED": "access is denied; credentials come from the environment or ~/.aws, as for any S3 client",
    "INVALID_ACCESS_KEY_ID": "AWS_ACCESS_KEY_ID is not known there",
    "SIGNATURE_DOES_NOT_MATCH": "AWS_SECRET_ACCESS_KEY is not the one of AWS_ACCESS_KEY_ID",
}


def is_url(where: Any) -> bool:
    """Whether a place is named by a URL, and not by a path of this machine.

    >>> is_url("s3://bucket/run"), is_url("C://x"), is_url("runs/a")
    (True, False, False)
    """
    return isinstance(where, str) and _URL.match(where) is not None


def local_path(where: str) -> str:
    """A file:// URL as a path; anything else as it is.

    >>> local_path("file:///data/my%20edges.csv"), local_path("edges.csv")
    ('/data/my edges.csv', 'edges.csv')
    """
    return unquote(urlsplit(where).path) if where.startswith("file://") else where


def refuse_url(option: str, where: str) -> None:
    """Refuses a URL for a folder in which a run works."""
    if is_url(where):
        raise ValueError(
            f"{option}={where} is a URL, and a run works in a folder of this machine: {option}=runs/NAME; its results "
            "are scores/scores.parquet and report/ there"
        )


def refuse_secrets(option: str, url: str) -> None:
    """Refuses a URL that holds a password, a key, a token or a signature: options are kept in the run's folder.

    >>> refuse_secrets("graph.path", "https://h/edges.csv?X-Amz-Signature=1a2b")
    Traceback (most recent call last):
    ...
    ValueError: graph.path=https://... holds a secret, which the run's folder would keep; put it into the environment \
(PGPASSWORD, AWS_SECRET_ACCESS_KEY) or the file that its client reads (~/.pgpass, ~/.aws), or fetch the file first
    """
    if hide_secrets(url) != url:
        scheme = f"{url.partition('://')[0]}://" if is_url(url) else ""
        raise ValueError(
            f"{option}={scheme}... holds a secret, which the run's folder would keep; put it into the environment "
            "(PGPASSWORD, AWS_SECRET_ACCESS_KEY) or the file that its client reads (~/.pgpass, ~/.aws), or fetch the "
            "file first"
        )


def hide_secrets(text: str) -> str:
    """Text that shows no password, and whose URLs, if it has any, show no token, key or signature.

    >>> hide_secrets("postgresql://me:a/b@c@host/db and s3://b/edges.csv?PASSWORD=x&n=1")
    'postgresql://me:***@host/db and s3://b/edges.csv?PASSWORD=***&n=1'
    """
    text = _PASSWORD.sub(r"\1***", text)
    for pattern, shown in _SECRETS if "://" in text else ():
        text = pattern.sub(shown, text)
    return _PARAMETER.sub(_without_secret, text) if "://" in text else text


def _without_secret(parameter: re.Match[str]) -> str:
    """A parameter of a URL, its value hidden where its name, percent signs decoded, is one of secrets."""
    return f"{parameter[1]}***" if _SECRET_NAME.fullmatch(unquote(parameter[2])) else parameter[0]


def open_file_system(option: str, url: str) -> tuple[Any, str]:
    """The pyarrow file system of a URL or path, and the path in it; wildcards stay as they are."""
    from pyarrow import fs

    if not is_url(url) or url.startswith("file://"):
        return fs.LocalFileSystem(), str(Path(local_path(url)).absolute())
    refuse_secrets(option, url)
    scheme, rest = url.split("://", 1)
    with naming_failures(option, url):
        if scheme in _OF_ARROW:
            bucket, _, path = rest.partition("/")
            if not bucket:
                raise ValueError("it names no bucket")
            system, root = fs.FileSystem.from_uri(f"{scheme}://{bucket}")
            return system, f"{root}/{path}".rstrip("/")
        try:
            import fsspec

            return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme))), url
        except ImportError as error:
            more = f"{scheme}:// needs the extra remote, pip install 'hcm-scale[remote]', or a package of its own"
            raise ValueError(f"{option}={url}: {more} ({error})") from error


@contextlib.contextmanager
def naming_failures(option: str, url: str) -> Iterator[None]:
    """Turns what a client of a file system raises into a ValueError of one line."""
    try:
        yield
    except Exception as error:  # aiohttp, botocore and pyarrow share no class
        is_full = getattr(error, "errno", None) == errno.ENOSPC
        if isinstance(error, ImportError) or is_full or str(error).startswith(f"{option}="):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        short = re.sub(r" \(Request ID: [^)]*\)", "", text)[:300]
        said = next((words for code, words in _SAID.items() if code in text), short)
        raise ValueError(hide_secrets(f"{option}={url}: {said}")) from error
