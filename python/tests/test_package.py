"""The package as a whole: what it has, that the page has it, and that importing it is cheap."""

import dataclasses
import inspect
import os
import re
import subprocess
import sys
import unittest

import skyward

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "python.md")


def named(text):
    """Every name in code on the page."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))))


def public(kind):
    return [name for name in vars(kind) if not name.startswith("_")]


class Package(unittest.TestCase):
    def test_every_name_field_and_method_is_on_the_page(self):
        with open(PAGE, encoding="utf-8") as file:
            found = named(file.read())
        names = {*skyward.__all__, *skyward.storage.__all__, *public(skyward.DistributedSampler), *public(skyward.Storage)}
        for kind in (skyward.InstanceInfo, skyward.PeerInfo, skyward.AcceleratorInfo, skyward.NetworkInfo):
            names.update(field.name for field in dataclasses.fields(kind))
            names.update(public(kind))
        for function in (skyward.shard, skyward.DistributedSampler, skyward.storage.Backblaze, skyward.storage.R2):
            names.update(name for name in inspect.signature(function).parameters)
        self.assertEqual(sorted(names - found), [])

    def test_everything_public_is_there_and_says_what_it_does(self):
        for module in (skyward, skyward.storage):
            for name in module.__all__:
                value = getattr(module, name)
                self.assertTrue(name == "Credential" or inspect.getdoc(value), name)
                if inspect.isclass(value):
                    for method in public(value):
                        if callable(getattr(value, method)):
                            self.assertTrue(inspect.getdoc(getattr(value, method)), f"{name}.{method}")
        self.assertEqual(dir(skyward), sorted(skyward.__all__))
        with self.assertRaisesRegex(AttributeError, "no attribute 'nothing'"):
            skyward.nothing  # noqa: B018

    def test_importing_it_imports_no_other_module_until_a_name_is_used(self):
        code = (
            "import sys; before = set(sys.modules); import skyward; first = set(sys.modules) - before;"
            "from skyward import *; print(first, storage.S3.__name__, Storage.__name__, silent.__name__, shard.__name__)"
        )
        environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(skyward.__file__)))
        end = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(end.stdout, "{'skyward'} S3 Storage silent shard\n", end.stderr)


if __name__ == "__main__":
    unittest.main()
