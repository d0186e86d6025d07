import pytest

from nearkin.core.addresses import is_shared, without_secrets


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("nearkin-zoo", "nearkin-zoo"),
        ("/a:b@c/zoo", "/a:b@c/zoo"),
        ("file:///net/zoo blobs", "file:///net/zoo blobs"),
        ("postgresql://", "postgresql://"),
        ("postgresql:///zoo?host=/run/pg", "postgresql:///zoo?host=/run/pg"),
        ("postgresql://ann@db/zoo?schema=x", "postgresql://ann@db/zoo?schema=x"),
        ("postgresql://ann:pw@db:5432/zoo", "postgresql://ann@db:5432/zoo"),
        ("postgres://ann:pw@pw@db/zoo", "postgres://ann@db/zoo"),
        ("postgresql://ann:p/w@db/zoo", "postgresql://ann@db/zoo"),
        ("postgresql://ann:1?w#@db/zoo", "postgresql://ann@db/zoo"),
        ("postgresql:///zoo?user=ann&password=pw&sslpassword=pw&pass%77ord=pw", "postgresql:///zoo?user=ann"),
        ("s3://key:pw@bucket/zoo?token=pw&region=x", "s3://bucket/zoo?region=x"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("https://host/blobs?X-Amz-Signature=pw&sig=pw&v=1", "https://host/blobs?v=1"),
        ("--zoo=postgresql://ann:pw@db/zoo", "--zoo=postgresql://db/zoo"),
        ("postgresql://ann:pw@[::1/zoo", "postgresql://…"),
    ],
)
def test_secrets_are_left_out(address: str, shown: str) -> None:
    assert without_secrets(address) == shown
    assert without_secrets(shown) == shown


def test_shared_zoos_are_recognised() -> None:
    assert is_shared("postgres://a/b")
    assert not is_shared("postgresql")
    assert not is_shared("s3://bucket")
