"""Request and response headers."""

from __future__ import annotations

import pytest

from kbroker.errors import ProtocolError
from kbroker.protocol import headers
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.headers import RequestHeader


def test_header_versions() -> None:
    assert headers.request_header_version(ApiKey.METADATA, 8) == 1
    assert headers.request_header_version(ApiKey.METADATA, 9) == 2
    assert headers.response_header_version(ApiKey.METADATA, 8) == 0
    assert headers.response_header_version(ApiKey.METADATA, 9) == 1
    assert headers.request_header_version(ApiKey.API_VERSIONS, 3) == 2
    assert headers.request_header_version(ApiKey.API_VERSIONS, 77) == 2
    assert headers.response_header_version(ApiKey.API_VERSIONS, 4) == 0
    assert headers.request_header_version(ApiKey.SASL_HANDSHAKE, 1) == 1
    assert headers.request_header_version(ApiKey.OFFSET_DELETE, 0) == 1
    assert headers.request_header_version(4, 3) == 1


def test_client_id_is_never_compact() -> None:
    header = RequestHeader(ApiKey.METADATA, 9, 5, "ab")
    raw = headers.encode_request_header(header)
    assert raw.hex() == "0003" + "0009" + "00000005" + "00026162" + "00"
    assert headers.decode_request_header(raw + b"body") == (header, len(raw))


@pytest.mark.parametrize("client_id", [None, "", "kafka-client-ü", "x" * 32767])
@pytest.mark.parametrize("version", [1, 9])
def test_round_trip(client_id: str | None, version: int) -> None:
    header = RequestHeader(ApiKey.METADATA, version, -7, client_id)
    raw = headers.encode_request_header(header)
    assert headers.decode_request_header(memoryview(raw)) == (header, len(raw))


def test_header_version_0_has_no_client_id() -> None:
    header = RequestHeader(7, 0, 3, None)
    raw = headers.encode_request_header(header, 0)
    assert len(raw) == 8
    assert headers.decode_request_header(raw, 0) == (header, 8)


def test_unknown_tags_of_the_header_are_skipped() -> None:
    raw = headers.encode_request_header(RequestHeader(ApiKey.METADATA, 9, 5, None))[:-1]
    assert headers.decode_request_header(raw + bytes.fromhex("01" + "0702" + "ffff") + b"rest")[1] == len(raw) + 5


def test_every_truncation_is_refused() -> None:
    raw = headers.encode_request_header(RequestHeader(ApiKey.METADATA, 9, 5, "abc"))
    for end in range(len(raw)):
        with pytest.raises(ProtocolError):
            headers.decode_request_header(raw[:end])


@pytest.mark.parametrize("client_id", ["fffe", "7fff", "0002c328"])
def test_bad_client_ids_are_refused(client_id: str) -> None:
    with pytest.raises(ProtocolError, match="client_id"):
        headers.decode_request_header(bytes.fromhex("0003" + "0001" + "00000005" + client_id))


def test_response_headers() -> None:
    assert headers.encode_response_header(ApiKey.METADATA, 8, 5).hex() == "00000005"
    assert headers.encode_response_header(ApiKey.METADATA, 9, 5).hex() == "0000000500"
    assert headers.encode_response_header(ApiKey.API_VERSIONS, 3, 5).hex() == "00000005"
    assert headers.decode_response_header(ApiKey.METADATA, 9, bytes.fromhex("0000000500aa")) == (5, 5)
    for frame in ("000000", "00000005", "0000000501"):
        with pytest.raises(ProtocolError):
            headers.decode_response_header(ApiKey.METADATA, 9, bytes.fromhex(frame))
