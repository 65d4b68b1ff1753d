"""A function of this file as a Task, without its text: what a Python client does.

    pip install cloudpickle lz4
    python3 submit.py | kubectl create -f -

It prints a Pool whose machines have this Python and the two packages, and a Task. The machines need a package index in
reach. Arguments are JSON; whatever else the function closes over, here `SCALE`, travels in the pickle, which has room for
96 KiB. What is larger belongs into files (`spec.source`).
"""

import base64
import json
import platform

import cloudpickle
import lz4.frame

SCALE = 7


def scaled(values: list[int]) -> list[int]:
    return [SCALE * value for value in values]


def pickled(function: object) -> dict[str, str]:
    return {
        "data": base64.b64encode(lz4.frame.compress(cloudpickle.dumps(function))).decode(),
        "python": platform.python_version(),
        "cloudpickle": cloudpickle.__version__,
    }


def resource(kind: str, spec: dict[str, object]) -> dict[str, object]:
    return {"apiVersion": "skyward.dev/v1alpha1", "kind": kind, "metadata": {"name": "pickle"}, "spec": spec}


if __name__ == "__main__":
    python = ".".join(platform.python_version_tuple()[:2])
    packages = [f"cloudpickle=={cloudpickle.__version__}", "lz4"]
    pool = resource("Pool", {"provider": "local", "image": {"python": python, "pip": packages}})
    task = resource("Task", {"pool": "pickle", "function": {"pickle": pickled(scaled), "args": [[1, 2, 3]]}})
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pool, task]}, indent=2))
