"""The ready line falls into words, whatever the names of directories and buckets."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from broker.startup.ready_words import path_word, url_word
from coldstore.url import parse_bucket_url
from tests.support.brokers.broker_kit import Place


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_path_is_one_word_and_comes_back(path: str) -> None:
    word = path_word(path)
    assert word.split() == [word]
    assert unquote(word) == path


def test_plain_names_and_urls_stay_as_they_are() -> None:
    assert path_word("/var/lib/thermocline-1/käse") == "/var/lib/thermocline-1/käse"
    url = "s3://bucket/a%20b?endpoint=http://127.0.0.1:9000&region=x"
    assert url_word(url) == url
    word = url_word("file:///tmp/my bucket\tand 100%25")
    assert word == "file:///tmp/my%20bucket%09and%20100%25"
    assert parse_bucket_url(word) == parse_bucket_url("file:///tmp/my bucket\tand 100%25")


async def test_the_line_of_a_broker() -> None:
    life = await Place().start()
    listening: Any = life.broker._listening
    words = listening.ready_line("c", "file:///b c").split()
    assert words[0] == "ready" and words[-1] == "bucket=file:///b%20c"
    assert [word.partition("=")[0] for word in words[1:]] == ["kafka", "http", "node", "cluster", "data", "bucket"]
    await life.stop()
