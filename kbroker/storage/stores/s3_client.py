"""boto3's client of one bucket, and what its exceptions mean.

The client library's own retries are off, because they would hide unknown outcomes. Payloads are not signed (use
TLS, or loopback); their integrity rests on a CRC-32C header sent with every put and part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import boto3
import botocore.session
from botocore import exceptions as aws
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials

from kbroker.storage.stores.http_connections import NotPlain
from kbroker.storage.stores.object_store import (
    ChecksumMismatch,
    InvalidRange,
    NotFound,
    PreconditionFailed,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from kbroker.storage.stores.s3_bodies import BodyFile
from kbroker.storage.stores.s3_login import S3Login
from kbroker.storage.stores.s3_reads import URL_EXPIRES_SECONDS

_DENIED_CODES = {
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "XAdminUserNotFound",  # versitygw: no such access key
}
_CHECKSUM_CODES = {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"}
_BUSY_CODES = {
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",  # a clash with another operation in progress on the key
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
}
MISSING_CODES = {"NoSuchKey", "NoSuchUpload", "NoSuchVersion", "NotFound", "404"}


class S3Client:
    """Thread-safe, as boto3's clients are. `authorities`: a file of certificates, where AWS' configuration names one.

    Raises StoreErrors.
    """

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None,
        region: str | None,
        connect_timeout_s: float,
        read_timeout_s: float,
        connections_max: int,
        login: S3Login | None = None,
    ) -> None:
        self.bucket = bucket
        core = botocore.session.get_session()
        if login is not None:
            core.set_credentials(*login)
        try:
            session = boto3.session.Session(botocore_session=core)
            self._client = session.client(
                "s3",
                endpoint_url=endpoint,
                region_name=region or session.region_name or "us-east-1",
                config=Config(
                    signature_version="s3v4",
                    connect_timeout=connect_timeout_s,
                    read_timeout=read_timeout_s,
                    max_pool_connections=connections_max,
                    tcp_keepalive=True,
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    s3={"payload_signing_enabled": False, "addressing_style": "path" if endpoint else "auto"},
                ),
            )
            self._credentials = session.get_credentials()
            self.authorities = core.get_config_variable("ca_bundle")
        except aws.BotoCoreError as error:  # AWS' files or variables name something missing
            if isinstance(error, ValueError):
                raise
            self.raise_mapped(error, "configuration", None, conditional=False)

    def before_put(self, note: Callable[..., None]) -> None:
        """Calls `note` with each request of a PUT before boto3 sends it, on the thread that does."""
        self._client.meta.events.register("before-send.s3.PutObject", note)

    def frozen_credentials(self) -> ReadOnlyCredentials | None:
        """Credentials as they are now, None without any. Raises NotPlain for what boto3 must handle."""
        if self._credentials is None:
            return None
        try:
            return self._credentials.get_frozen_credentials()
        except Exception as error:  # refreshing raises many kinds; boto3 will raise the same
            raise NotPlain(str(error)) from error

    def sign(self, method: str, key: str) -> str:
        """A URL for a GET or HEAD, valid for URL_EXPIRES_SECONDS. Raises NotPlain for what boto3 must handle."""
        parameters = {"Bucket": self.bucket, "Key": key}
        if method == "HEAD":
            parameters["ChecksumMode"] = "ENABLED"
        try:
            url: str = self._client.generate_presigned_url(f"{method.lower()}_object", parameters, URL_EXPIRES_SECONDS)
        except Exception as error:  # as above
            raise NotPlain(str(error)) from error
        return url

    def call(
        self,
        operation: str,
        key: str | None,
        arguments: dict[str, Any],
        *,
        conditional: bool,
        bucket: str | None = None,
    ) -> dict[str, Any]:
        """One operation of boto3's client. `conditional`: a 409 means that a condition does not hold."""
        target = {"Bucket": bucket or self.bucket} | ({} if key is None else {"Key": key})
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(**target, **arguments)
        except Exception as error:
            body = arguments.get("Body")
            if isinstance(body, BodyFile) and body.failure is not None:
                raise body.failure from error
            self.raise_mapped(error, operation, key, conditional=conditional)
        return answer

    def name(self, key: str | None) -> str:
        """An object, for messages."""
        return f"s3://{self.bucket}/{key or ''}"

    def raise_mapped(self, error: Exception, operation: str, key: str | None, *, conditional: bool) -> NoReturn:
        """Maps boto3's exceptions to ours, with their text on one line."""
        text = f"{self.name(key)}: {operation}: {' '.join(str(error).split())}"
        if isinstance(error, StoreError):
            raise error
        if isinstance(error, aws.ClientError):
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code == "NoSuchBucket":
                raise StoreError(f"bucket {self.bucket} does not exist") from error
            raise error_class(code, status, conditional=conditional)(text) from error
        if isinstance(error, (aws.NoCredentialsError, aws.PartialCredentialsError, aws.CredentialRetrievalError)):
            raise StoreDenied(text) from error
        if isinstance(error, (aws.HTTPClientError, aws.ConnectionError, aws.IncompleteReadError, OSError)):
            raise StoreUnavailable(text) from error
        if isinstance(error, aws.BotoCoreError):
            raise StoreError(text) from error
        raise error

    def open_range(
        self, key: str, start: int | None, length: int | None, if_match: str | None, bucket: str | None = None
    ) -> dict[str, Any]:
        """A GET; its answer is checked to be the requested range, cut at the object's end. Close its body."""
        arguments: dict[str, Any] = {}
        if start is not None:
            arguments["Range"] = f"bytes={start}-" if length is None else f"bytes={start}-{start + length - 1}"
        if if_match is not None:
            arguments["IfMatch"] = if_match
        answer = self.call("get_object", key, arguments, conditional=True, bucket=bucket)
        if start is not None:
            got = answer.get("ContentRange", "")
            try:
                span, total = got.removeprefix("bytes ").split("/")
                first, last = (int(part) for part in span.split("-"))
                end = int(total) if length is None else min(int(total), start + length)
                exact = (first, last) == (start, end - 1)
            except ValueError:
                exact = False
            if not exact or answer["ContentLength"] != last - first + 1:
                answer["Body"].close()
                raise StoreError(f"{self.name(key)}: asked for {arguments['Range']}, store sent {got!r}")
        return answer

    def close(self) -> None:
        self._client.close()


def credentials_source() -> str | None:
    """Where boto3 finds credentials (``env``, ``shared-credentials-file``, ``iam-role``, ...); None: nowhere.

    Raises StoreDenied where a source is there and fails.
    """
    try:
        found = botocore.session.get_session().get_credentials()
    except Exception as error:  # each source has kinds of its own
        raise StoreDenied(" ".join(str(error).split())) from error
    return None if found is None else str(found.method)


def secrets() -> list[str]:
    """The credentials that boto3 finds, for what must not show them."""
    try:
        found = botocore.session.get_session().get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
    except Exception:  # as above; the client cannot have them either
        return []
    return [] if frozen is None else [each for each in (frozen.access_key, frozen.secret_key, frozen.token) if each]


def is_answer(error: StoreError) -> bool:
    """Whether the store sent this error itself: it is there, if only to say that it is busy."""
    return isinstance(error.__cause__, aws.ClientError)


def error_class(code: str, status: int, *, conditional: bool) -> type[StoreError]:
    """What an error code and a status mean."""
    if status == 412 or code == "PreconditionFailed" or (status == 409 and conditional):
        return PreconditionFailed
    if code in _CHECKSUM_CODES:
        return ChecksumMismatch
    if status in (401, 403) or code in _DENIED_CODES:
        return StoreDenied
    if status == 416:
        return InvalidRange
    # Some servers answer 404 for an unknown access key or tenant: only these codes mean the object.
    if code in MISSING_CODES:
        return NotFound
    if (status >= 500 and status != 501) or status in (408, 429) or code in _BUSY_CODES:
        return StoreUnavailable
    return StoreError
