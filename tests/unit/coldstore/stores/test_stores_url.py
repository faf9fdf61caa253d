"""Bucket URLs: what parses, what is refused and how, and that no secret is ever repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstore.stores.directory import DirectoryStore
from coldstore.stores.opening import open_store
from coldstore.url import DirectoryUrl, S3Url, parse_bucket_url, with_key_file
from logformat.errors import InvalidRequest
from seams.clock import SystemClock
from seams.files.posix_disk import PosixDisk
from seams.files.syncs import WorkerSyncs
from seams.loop.workers import ThreadWorkers
from seams.net import TcpNet
from seams.rng import SystemRng
from seams.world import World


def test_a_relative_key_file_is_refused_by_the_name_it_was_given_by() -> None:
    """It was called a part of the bucket's URL also where it came from the environment."""
    with pytest.raises(InvalidRequest, match="bucket URL: key_file must be an absolute path"):
        parse_bucket_url("file:///data/bucket?key_file=keys.json")
    with pytest.raises(InvalidRequest, match="THERMOCLINE_ENCRYPTION_KEY_FILE must be an absolute path"):
        with_key_file(parse_bucket_url("file:///data/bucket"), "keys.json")


def test_a_directory() -> None:
    """Three slashes, normal form, percent-encoding both ways."""
    assert parse_bucket_url("file:///data/bucket") == DirectoryUrl("/data/bucket")
    assert parse_bucket_url("file:///data//x/../bucket/") == DirectoryUrl("/data/bucket")
    assert parse_bucket_url("file:///my%20data/a%3Fb") == DirectoryUrl("/my data/a?b")
    assert DirectoryUrl("/my data/a?b").printed() == "file:///my%20data/a%3Fb"


def test_a_bucket() -> None:
    """Prefix without slashes at its ends, every parameter of cli.md."""
    assert parse_bucket_url("s3://archive") == S3Url("archive")
    assert parse_bucket_url("s3://archive/a/b/") == S3Url("archive", "a/b")
    full = (
        "s3://archive/p?endpoint=http://127.0.0.1:9000&region=eu-west-1&path_style=true"
        "&storage_class=STANDARD_IA&sse=aws:kms&sse_key=arn:aws:kms:eu-west-1:1:key/2"
    )
    url = parse_bucket_url(full)
    assert url == S3Url(
        "archive",
        "p",
        "http://127.0.0.1:9000",
        "eu-west-1",
        True,
        "STANDARD_IA",
        "aws:kms",
        "arn:aws:kms:eu-west-1:1:key/2",
    )
    assert url.printed() == full


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/data/bucket", "no scheme"),
        ("s3:/bucket", "two slashes belong after the colon"),
        ("gs://bucket", "'gs' is not known"),
        ("file://data/bucket", "three slashes"),
        ("file:///", "root directory"),
        ("file:///a?b=c", "no parameters"),
        ("s3://", "no valid bucket"),
        ("s3:///prefix", "no valid bucket"),
        ("s3://bad bucket", "no valid bucket"),
        ("s3://bucket#x", "no valid bucket"),
        ("s3://bucket/a/../b", "not allowed"),
        ("s3://bucket/a//b", "not allowed"),
        ("s3://bucket?endpont=http://x", "did you mean 'endpoint'"),
        ("s3://bucket?storageclass=X", "did you mean 'storage_class'"),
        ("s3://bucket?region=a&region=b", "given twice"),
        ("s3://bucket?region=", "region is empty"),
        ("s3://bucket?path_style=yes", "true or false"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "http(s)://host"),
        ("s3://bucket?endpoint=http://host/path", "http(s)://host"),
        ("s3://bucket?sse=rot13", "one of AES256"),
        ("s3://bucket?sse_key=k", "needs sse=aws:kms"),
        ("s3://bucket?nonsense", "not a URL"),
    ],
)
def test_a_mistake_is_named(text: str, says: str) -> None:
    """Each refusal says what to write instead."""
    with pytest.raises(InvalidRequest, match=r"bucket URL|object key") as refused:
        parse_bucket_url(text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIASECRET:s3cr3tKEY@bucket",
        "s3://s3cr3tKEY@bucket/prefix",
        "s3://bucket?access_key=s3cr3tKEY",
        "s3://bucket?secret_access_key=s3cr3tKEY",
        "s3://bucket?aws_session_token=s3cr3tKEY",
        "s3://bucket?password=s3cr3tKEY",
        "s3://bucket?endpoint=http://user:s3cr3tKEY@host",
        "s3://s3cr3tKEY:x@bad host/?x",
    ],
)
def test_a_secret_in_the_url_is_refused_and_never_repeated(text: str) -> None:
    """It would end in logs, process lists and the ready line."""
    with pytest.raises(InvalidRequest) as refused:
        parse_bucket_url(text)
    assert "s3cr3tKEY" not in str(refused.value) and refused.value.__cause__ is None


_WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789-._ %+&=?#é", min_size=1, max_size=12).filter(
    lambda word: word not in (".", "..")
)


@given(
    st.builds(
        S3Url,
        bucket=st.from_regex(r"[a-z0-9][a-z0-9.-]{2,30}", fullmatch=True),
        prefix=st.lists(_WORD, max_size=3).map("/".join),
        endpoint=st.none() | st.sampled_from(["http://127.0.0.1:9000", "https://s3.example.com", "http://[::1]:80"]),
        region=st.none() | _WORD,
        path_style=st.none() | st.booleans(),
        storage_class=st.none() | _WORD,
        sse=st.just("aws:kms"),
        sse_key=st.none() | _WORD,
    )
    | st.builds(DirectoryUrl, st.lists(_WORD, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts)))
)
def test_what_is_printed_parses_back(url: S3Url | DirectoryUrl) -> None:
    """A printed URL can be typed again, whatever is in its names."""
    assert parse_bucket_url(url.printed()) == url


@given(st.text(max_size=60) | st.text(max_size=60).map(lambda text: "s3://" + text))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """No other exception, whatever is typed."""
    try:
        parse_bucket_url(text)
    except InvalidRequest:
        return


def test_opening_a_directory(tmp_path: Path) -> None:
    """The store knows its URL; nothing was created by opening it."""
    workers = ThreadWorkers()
    world = World(PosixDisk(), workers, WorkerSyncs(workers), SystemClock(), SystemRng(), TcpNet())
    store = open_store(parse_bucket_url(f"file://{tmp_path}/bucket"), world)
    assert isinstance(store, DirectoryStore) and store.url == f"file://{tmp_path}/bucket"
    assert list(tmp_path.iterdir()) == []
    workers.close()
