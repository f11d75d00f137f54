"""Signatures beside those of botocore's signer."""

from __future__ import annotations

import datetime

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from kbroker.storage.stores.sigv4 import Credentials, Signer

UNSIGNED = Config(s3={"payload_signing_enabled": False})
TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)
PATHS = st.lists(st.sampled_from(["a", "B", "%20", "%C3%BC", "-", "~", ".", "/", "%2F", "//"]), max_size=20)
HEADERS = st.dictionaries(st.sampled_from(["If-Match", "If-None-Match", "x-amz-checksum-crc32c", "X-Amz-Tag"]), TEXTS)


def of_botocore(target: str, host: str, headers: dict[str, str], credentials: Credentials, region: str) -> AWSRequest:
    request = AWSRequest("PUT", f"http://{host}{target}", headers=headers)
    request.context["client_config"] = UNSIGNED
    S3SigV4Auth(ReadOnlyCredentials(*credentials), "s3", region).add_auth(request)
    return request


@given(
    path=PATHS,
    headers=HEADERS,
    host=st.sampled_from(["127.0.0.1:9000", "bucket.s3.amazonaws.com", "[::1]:7070"]),
    credentials=st.builds(Credentials, st.just("AKIA"), TEXTS, st.none() | TEXTS),
    region=st.sampled_from(["us-east-1", "eu-north-1"]),
)
def test_the_same_as_botocores(
    path: list[str], headers: dict[str, str], host: str, credentials: Credentials, region: str
) -> None:
    target = "/" + "".join(path)
    theirs = of_botocore(target, host, headers, credentials, region)
    now = datetime.datetime.strptime(theirs.context["timestamp"], "%Y%m%dT%H%M%SZ")
    ours = Signer().sign("PUT", target, {"Host": host, **headers}, credentials, region, now)
    assert {name.lower(): value for name, value in ours.items()} == {
        "host": host,
        **{name.lower(): value for name, value in theirs.headers.items()},
    }


def test_the_kept_key_is_of_one_secret_one_day_and_one_region() -> None:
    """A signer that has been used signs as a new one does."""
    signer = Signer()
    first = datetime.datetime(2026, 2, 28, 23, 59, 59, tzinfo=datetime.UTC)
    for now in (first, first + datetime.timedelta(seconds=1), first):
        for secret in ("one", "two", "one"):
            credentials = Credentials("AKIA", secret, None)
            for region in ("us-east-1", "eu-north-1"):
                arguments = ("PUT", "/bucket/key", {"Host": "store"}, credentials, region, now)
                assert signer.sign(*arguments) == Signer().sign(*arguments)
