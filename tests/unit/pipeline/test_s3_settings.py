"""S3 as Spark's configuration names it: what wins, and what a text shows of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kbroker.pipeline import s3_settings, worker_process
from kbroker.pipeline.jobs.session import _caller
from kbroker.pipeline.s3_settings import S3Place, read_settings, s3_place, settings_of, use
from kbroker.storage.stores.s3_login import S3Login

CONF = {
    "fs.s3a.endpoint": "store:9000",
    "fs.s3a.endpoint.region": "eu-central-1",
    "fs.s3a.access.key": "key",
    "fs.s3a.secret.key": "hidden",
    "fs.s3a.session.token": "",
}
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_settings, "_used", {})
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def settings(**changed: str) -> dict[str, str]:
    conf = SimpleNamespace(get={**CONF, **{f"fs.s3a.{name}": value for name, value in changed.items()}}.get)
    context = SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: conf))
    return read_settings(SimpleNamespace(sparkContext=context))


def test_settings_of_spark_are_used_where_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3_place("http://given", None) == S3Place("http://given", None, None)
    use(settings())
    login = S3Login("key", "hidden")
    assert s3_place(None, None) == S3Place("https://store:9000", "eu-central-1", login)
    assert s3_place("http://given", "there") == S3Place("http://given", "there", login)
    for name, index in zip(VARIABLES, (2, 2, 0, 0, 1), strict=True):
        monkeypatch.setenv(name, "x")
        assert s3_place(None, None)[index] is None
        monkeypatch.delenv(name)


def test_half_of_a_login_is_none_and_an_endpoint_gets_its_scheme() -> None:
    use(settings(**{"secret.key": " "}))
    assert s3_place(None, None).login is None
    assert settings(**{"connection.ssl.enabled": "false"})["endpoint"] == "http://store:9000"
    assert settings(endpoint="http://store")["endpoint"] == "http://store"


def test_settings_of_a_session_that_is_not_made_yet_are_the_same() -> None:
    conf = {f"spark.hadoop.{name}": value for name, value in CONF.items()}
    assert settings_of(conf | {"spark.hadoop.fs.s3a.connection.ssl.enabled": "true"}) == settings()
    assert settings_of({}) == {}


def login_of(task: str) -> S3Login | None:
    """A task."""
    return s3_place(task, None).login


def test_a_jobs_tasks_get_the_settings_of_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "settle", lambda: None)
    use(settings())
    call = _caller(__name__, login_of.__name__)
    use({})
    assert login_of("http://store") is None
    assert call("http://store") == S3Login("key", "hidden")


def test_a_login_is_not_shown() -> None:
    assert "hidden" not in f"{S3Place(None, None, S3Login('key', 'hidden', 'token'))!r} {S3Login('key', 'hidden')}"
