"""A small client for S3 and what speaks like it: Storage, and a preset for each service.

    import skyward

    def main():
        with skyward.storage.S3(region="us-east-1") as s3:
            s3.upload("my-bucket", "model.pt", key="checkpoints/model.pt")
            keys = s3.ls("my-bucket", prefix="checkpoints/")
            s3.download("my-bucket", "checkpoints/model.pt", "local/model.pt")

It needs nothing but Python. Requests are signed, have deadlines and are repeated where the network or the
service fails; https uses the proxy that `https_proxy` and `no_proxy` name and trusts what `SSL_CERT_FILE` says.
"""

from __future__ import annotations

import os

from skyward._credentials import Credential, HyperstackKey, NoCredentialsError
from skyward._storage import ObjectNotFoundError, Storage, StorageError

__all__ = [
    "GCS",
    "R2",
    "S3",
    "Backblaze",
    "Credential",
    "Hyperstack",
    "NoCredentialsError",
    "ObjectNotFoundError",
    "Storage",
    "StorageError",
    "Wasabi",
]


def S3(
    *, region: str | None = None, access_key: Credential | None = None, secret_key: Credential | None = None
) -> Storage:
    """Amazon S3. The region is AWS_REGION or AWS_DEFAULT_REGION, else us-east-1, where it is left out."""
    chosen = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    domain = "amazonaws.com.cn" if chosen.startswith("cn-") else "amazonaws.com"
    return Storage(f"https://s3.{chosen}.{domain}", access_key, secret_key, region=chosen)


def R2(*, account_id: str, access_key: Credential, secret_key: Credential) -> Storage:
    """Cloudflare R2."""
    return Storage(f"https://{account_id}.r2.cloudflarestorage.com", access_key, secret_key, True, "auto")


def GCS(*, access_key: Credential, secret_key: Credential) -> Storage:
    """Google Cloud Storage, with the HMAC keys of its interoperability."""
    return Storage("https://storage.googleapis.com", access_key, secret_key, True, "auto")


def Wasabi(*, region: str, access_key: Credential, secret_key: Credential) -> Storage:
    """Wasabi."""
    return Storage(f"https://s3.{region}.wasabisys.com", access_key, secret_key, region=region)


def Backblaze(*, region: str, key_id: Credential, app_key: Credential) -> Storage:
    """Backblaze B2, with an application key."""
    return Storage(f"https://s3.{region}.backblazeb2.com", key_id, app_key, region=region)


def Hyperstack(*, api_key: str, region: str = "CANADA-1") -> Storage:
    """Hyperstack, whose API key makes a pair of keys at the first request; the end of `with` removes it."""
    if region != "CANADA-1":
        raise ValueError(f"Hyperstack stores objects in CANADA-1, not in {region}")
    key = HyperstackKey(api_key, region)
    storage = Storage("https://ca1.obj.nexgencloud.io", key.access, key.secret, True)
    storage._state.closing = key.remove
    return storage
