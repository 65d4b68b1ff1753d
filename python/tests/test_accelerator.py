"""Accelerators: whose they are, by every name that the operator knows."""

import json
import os
import re
import unittest
from unittest import mock

import skyward

CATALOGUE = os.path.join(os.path.dirname(__file__), "..", "..", "src", "core", "accelerator", "models.rs")


def catalogue():
    """Each name of the operator's catalogue with its maker."""
    with open(CATALOGUE, encoding="utf-8") as file:
        lines = file.read().partition("pub const MODELS")[2].partition("\n];")[0].splitlines()
    maker = None
    for line in lines:
        if found := re.match(r" *// (NVIDIA|AMD|Amazon|Google|Intel)\b", line):
            maker = found[1]
        for name in re.findall(r'"([^"]+)"', line.partition("//")[0]):
            yield name, maker


class Accelerators(unittest.TestCase):
    def test_every_name_in_the_catalogue_has_its_maker(self):
        names = dict(catalogue())
        self.assertGreater(len(names), 100)
        self.assertEqual({"NVIDIA", "AMD", "Amazon", "Google"} - set(names.values()), set())
        for name, maker in names.items():
            with self.subTest(name=name):
                self.assertEqual(skyward.is_nvidia(name), maker == "NVIDIA")
                self.assertEqual(skyward.is_trainium(name), maker == "Amazon" and name.lower().startswith("tr"))

    def test_names_may_be_written_as_clouds_write_them(self):
        for name in ("A100-80GB", "H100-SXM", "h100_pcie", "H100-NVL", "NVIDIA H100 80GB HBM3", "Tesla T4", "gb200"):
            self.assertTrue(skyward.is_nvidia(name), name)
        for name in ("MI300X", "AMD Instinct MI300X", "Gaudi2", "TPUv4", "My-GPU", "Trainium2", "", " "):
            self.assertFalse(skyward.is_nvidia(name), name)
        for name in ("Trainium2", "trn1", "AWS Trainium", "trainium-v2"):
            self.assertTrue(skyward.is_trainium(name), name)
        for name in ("H100", "Inferentia2", ""):
            self.assertFalse(skyward.is_trainium(name), name)

    def test_without_a_name_the_machines_own_is_meant(self):
        for accelerator, found in (
            ({"type": "H100", "count": 2}, ("H100", True, False)),
            ({"type": "Trainium2", "count": 1}, ("Trainium2", False, True)),
            (None, (None, False, False)),
        ):
            with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": json.dumps({"accelerator": accelerator})}):
                self.assertEqual((skyward.current_accelerator(), skyward.is_nvidia(), skyward.is_trainium()), found)
        with mock.patch.dict(os.environ, {"SKYWARD_INSTANCE_INFO": ""}):
            with self.assertRaises(skyward.NotInTaskError):
                skyward.current_accelerator()


if __name__ == "__main__":
    unittest.main()
