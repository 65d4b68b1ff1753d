"""How far the work of a Task is."""

import json
import os
import tempfile
import threading
import unittest
from unittest import mock

import skyward


class Progress(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "progress")
        open(self.path, "w").close()
        variables = mock.patch.dict(os.environ, {"SKYWARD_PROGRESS_FILE": self.path})
        variables.start()
        self.addCleanup(variables.stop)

    def said(self):
        with open(self.path) as file:
            text = file.read()
        self.assertEqual(len(text), 64)
        return text.strip()

    def test_the_newest_numbers_are_the_only_ones_in_the_file(self):
        for numbers, said in [((123456, 234567), "123456/234567"), ((7,), "7"), ((0, 0), "0/0"), ((9, 3), "9/3")]:
            skyward.progress(*numbers)
            self.assertEqual(self.said(), said)
        skyward.progress(2**64 - 1, 2**64 - 1)
        self.assertEqual(self.said(), f"{2**64 - 1}/{2**64 - 1}")

    def test_numbers_that_are_not_whole_or_not_there_are_refused_and_change_nothing(self):
        skyward.progress(1, 2)
        for error, numbers in [
            (TypeError, (0.5,)),
            (TypeError, ("3", 4)),
            (TypeError, (1, 2.0)),
            (ValueError, (-1,)),
            (ValueError, (1, -2)),
            (ValueError, (2**64,)),
        ]:
            with self.assertRaises(error):
                skyward.progress(*numbers)
        self.assertEqual(self.said(), "1/2")

    def test_threads_do_not_mix_their_numbers(self):
        threads = [
            threading.Thread(target=lambda n=n: [skyward.progress(n, n) for _ in range(300)]) for n in (1, 22222222)
        ]
        for thread in threads:
            thread.start()
        seen = set()
        while any(thread.is_alive() for thread in threads):
            with open(self.path) as file:
                seen.add(file.read().strip())
        self.assertLessEqual(seen, {"", "1/1", "22222222/22222222"})

    def test_outside_of_a_task_it_says_so_and_beside_an_older_agent_it_does_nothing(self):
        with mock.patch.dict(os.environ):
            del os.environ["SKYWARD_PROGRESS_FILE"]
            os.environ.pop("SKYWARD_INSTANCE_INFO", None)
            with self.assertRaises(skyward.NotInTaskError):
                skyward.progress(1)
            os.environ["SKYWARD_INSTANCE_INFO"] = json.dumps({"node": 0, "total_nodes": 1})
            skyward.progress(1)


if __name__ == "__main__":
    unittest.main()
