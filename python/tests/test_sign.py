"""Signatures: the examples that AWS publishes, letter by letter."""

import unittest

from skyward._sign import EMPTY, Keys, encode_path, encode_query, signed

KEYS = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


def headers(query, keys=KEYS, **extra):
    return signed(
        keys,
        region="us-east-1",
        method="GET",
        host="examplebucket.s3.amazonaws.com",
        path="/",
        query=encode_query(query),
        headers=extra,
        digest=EMPTY,
        time="20130524T000000Z",
    )


class Signatures(unittest.TestCase):
    def test_they_are_those_of_the_published_examples(self):
        for query, signature in (
            ({"lifecycle": ""}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            ({"prefix": "J", "max-keys": "2"}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ):
            self.assertEqual(
                headers(query)["Authorization"],
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
                f"SignedHeaders=host;x-amz-content-sha256;x-amz-date,Signature={signature}",
            )

    def test_a_token_is_sent_and_signed_and_other_headers_are_only_sent(self):
        found = headers({}, Keys("a", "s", "token"), Range="bytes=0-9")
        self.assertEqual((found["x-amz-security-token"], found["Range"]), ("token", "bytes=0-9"))
        self.assertIn("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,", found["Authorization"])

    def test_secrets_are_not_shown(self):
        self.assertEqual(repr(Keys("a", "geheim", "geheim")), "Keys(access='a')")

    def test_paths_are_escaped_once(self):
        self.assertEqual(encode_path("/a b/ö~+%20"), "/a%20b/%C3%B6~%2B%2520")


if __name__ == "__main__":
    unittest.main()
