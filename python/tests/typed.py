"""What type checkers see, which mypy checks and nobody runs."""

from collections.abc import Awaitable, Generator, Iterator

from typing_extensions import assert_type

import skyward


@skyward.stdout(only="head")
def function(number: int) -> str:
    return str(number)


@skyward.silent
async def later() -> int:
    return 1


@skyward.stderr(only=lambda info: info.node < 2)
def steps() -> Generator[int, None, str]:
    yield 1
    return ""


async def async_key() -> str:
    return ""


assert_type(function(1), str)
awaited: Awaitable[int] = later()
stepped: Iterator[int] = steps()

assert_type(skyward.shard([1, 2]), list[int])
assert_type(skyward.shard(("a", "b"), [1, 2], shuffle=True, seed=None), tuple[tuple[str, str], list[int]])
assert_type(skyward.shard("abc", b"abc", range(3)), tuple[str, bytes, range])
one, *rest = skyward.shard([1], [2], [3], [4], node=0, total_nodes=1)

assert_type(skyward.instance_info().slot, int)
assert_type(skyward.current_accelerator(), str | None)
assert_type(list(skyward.DistributedSampler([1, 2])), list[int])

with skyward.redirect_output(print) as (out, err):
    assert_type(out, skyward.CallbackWriter)

with skyward.storage.S3(region="us-east-1") as s3:
    assert_type(s3, skyward.Storage)
    assert_type(s3.ls("bucket"), list[str])
skyward.storage.R2(account_id="", access_key=lambda: "", secret_key=async_key)
