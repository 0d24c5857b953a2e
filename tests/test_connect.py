"""What a URL may show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqsweep import ConfigurationError, Sweeper
from mqsweep.connect import mask_url

SECRET = "s3cretword"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://***@localhost:6379/0"),
        ("redis://user:s3cretword@host:7000/3?ssl_keyfile=x", "redis://***@host:7000/3"),
        ("rediss://:s3cretword@[::1]", "rediss://***@[::1]:6379/0"),
        ("redis://", "***"),
        ("unix://user:s3cretword@/tmp/s.sock?db=2", "unix://***@/tmp/s.sock"),
        ("redis://:12/s3cretword@host/0", "***"),
        ("redis://host:port/0", "***"),
        ("redis://host/s3cretword", "redis://***@host:6379/0"),
        ("s3cretword", "***"),
    ],
)
def test_masked_urls(url: str, shown: str) -> None:
    assert mask_url(url) == shown


@given(
    scheme=st.sampled_from(("redis", "rediss", "unix", "http", "")),
    user=st.text("ab:%40", max_size=4),
    before=st.text("a1:/?#@%[]", max_size=5),
    after=st.text("a1:/?#@%[]", max_size=5),
    host=st.sampled_from(("host", "host:6380", "[::1]:6379", "/tmp/s.sock", "")),
)
def test_no_part_of_a_password_is_ever_shown(scheme: str, user: str, before: str, after: str, host: str) -> None:
    """Escaped as it should be or not: what stands before the last @ is secret."""
    url = f"{scheme}://{user}:{before}{SECRET}{after}@{host}/0"
    assert SECRET not in mask_url(url)
    said = ""
    try:
        Sweeper(url, "q").close()
    except ConfigurationError as error:
        said = str(error)
    assert SECRET not in said
