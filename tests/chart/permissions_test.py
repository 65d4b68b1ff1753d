"""Which answers of an API server permissions.py calls a fault."""

import unittest

from permissions import faults

LIST = ("skyward-controller", None, "pods", "list")
LIST_THERE = ("skyward-controller", "team", "pods", "list")


class Faults(unittest.TestCase):
    def test_what_nothing_grants_and_the_operator_was_refused_is_one(self):
        self.assertIn("refused: list pods in team (/pods)", "".join(faults({}, {LIST_THERE: "/pods"}, {})))

    def test_what_is_granted_is_refused_only_while_it_is_taken_away(self):
        self.assertEqual(faults({("skyward-controller", "else", "pods", "list"): 1}, {LIST_THERE: "/pods"}, {LIST: None}), [])

    def test_a_grant_for_named_objects_explains_no_refusal(self):
        found = faults({("skyward-controller", "else", "pods", "list"): 1}, {LIST_THERE: "/pods"}, {LIST: ["one"]})
        self.assertEqual(len(found), 1)

    def test_what_is_granted_and_never_asked_for_is_one(self):
        self.assertEqual(faults({}, {}, {LIST: None}), ["skyward-controller may list pods in the cluster, and never did"])


if __name__ == "__main__":
    unittest.main()
