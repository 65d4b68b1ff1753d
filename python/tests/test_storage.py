"""Storage, against moto: a server of S3's API that others wrote, and that checks each signature."""

import asyncio
import json
import os
import pickle
import re
import subprocess
import tempfile
import threading
import unittest
import urllib.parse
import urllib.request
from unittest import mock

from skyward import _storage, storage

PROGRAM = os.environ.get("SKYWARD_MOTO")
EVERYTHING = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


class Moto:
    """A moto_server with a user of its own; from then on it refuses whatever is not signed with that user's keys."""

    def __init__(self):
        self.process = subprocess.Popen(
            [PROGRAM, "-H", "127.0.0.1", "-p", "0"],
            env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "3", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in self.process.stderr:
            if found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", line):
                self.endpoint = found[1]
                break
        else:
            raise RuntimeError("moto_server ended")
        # What it says of each request would fill the pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.iam("CreateUser", UserName="u")
        self.iam("PutUserPolicy", UserName="u", PolicyName="p", PolicyDocument=json.dumps(EVERYTHING))
        key = self.iam("CreateAccessKey", UserName="u")
        self.access = re.search("<AccessKeyId>(.*)</AccessKeyId>", key)[1]
        self.secret = re.search("<SecretAccessKey>(.*)</SecretAccessKey>", key)[1]

    def iam(self, action, **values):
        request = urllib.request.Request(
            self.endpoint,
            urllib.parse.urlencode({"Action": action, "Version": "2010-05-08", **values}).encode(),
            {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/iam/aws4_request"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read().decode()

    def storage(self, **options):
        return storage.Storage(self.endpoint, self.access, self.secret, **options)

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stderr.close()


@unittest.skipUnless(PROGRAM, "SKYWARD_MOTO does not name a moto_server (make test installs one)")
class AgainstMoto(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.moto = Moto()
        cls.addClassCleanup(cls.moto.stop)
        # There is no way to make a bucket: people make them elsewhere.
        cls.moto.storage()._call("PUT", "bucket", None)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.s3 = self.moto.storage()
        self.addCleanup(self.s3.__exit__)
        for key in self.s3.ls("bucket"):
            self.s3.rm("bucket", key)

    def file(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def content(self, key):
        path = os.path.join(self.folder, "there", "and back")
        self.s3.download("bucket", key, path)
        self.assertEqual(os.listdir(os.path.dirname(path)), ["and back"])
        with open(path, "rb") as file:
            return file.read()

    def test_a_file_comes_back_as_it_was(self):
        for content in (b"", b"x", bytes(range(256)) * 5000):
            path = self.file("model.pt", content)
            self.s3.upload("bucket", path)
            self.s3.upload("bucket", path, key="deep/er/model.pt")
            self.assertEqual(self.s3.ls("bucket"), ["deep/er/model.pt", "model.pt"])
            self.assertEqual(self.content("deep/er/model.pt"), content)

    def test_keys_may_hold_whatever_text_may(self):
        path = self.file("x", b"1")
        keys = ["a b", "a+b", "a%20b", "ö/日本", "q?x=1&y", "#'\"<>&;", "tilde~!*()", "a//b", "back\\slash", "e=mc²"]
        for key in keys:
            self.s3.upload("bucket", path, key=key)
            self.assertTrue(self.s3.exists("bucket", key), key)
        self.assertEqual(sorted(self.s3.ls("bucket")), sorted(keys))
        for key in keys:
            self.assertEqual(self.content(key), b"1")
            self.s3.rm("bucket", key)
        self.assertEqual(self.s3.ls("bucket"), [])

    def test_a_prefix_chooses_and_pages_are_joined(self):
        path = self.file("x", b"")
        wanted = [f"many/{number:04}" for number in range(25)]
        for key in [*wanted, "other"]:
            self.s3.upload("bucket", path, key=key)
        real = _storage.encode_query

        def short_pages(query):
            return real({**query, "max-keys": "10"} if "list-type" in query else query)

        with mock.patch.object(_storage, "encode_query", short_pages):
            self.assertEqual(self.s3.ls("bucket", prefix="many/"), wanted)
            self.assertEqual(self.s3.ls("bucket", "nothing"), [])

    def test_what_is_removed_is_gone_and_may_be_removed_again(self):
        self.s3.upload("bucket", self.file("x", b""))
        self.assertTrue(self.s3.exists("bucket", "x"))
        self.s3.rm("bucket", "x")
        self.s3.rm("bucket", "x")
        self.assertFalse(self.s3.exists("bucket", "x"))

    def test_a_large_file_goes_in_parts(self):
        content = os.urandom(11 << 20)
        with mock.patch.object(_storage, "PART", 5 << 20):
            self.s3.upload("bucket", self.file("large", content))
        self.assertEqual(self.content("large"), content)

    def test_an_upload_in_parts_that_fails_leaves_no_parts_and_the_old_object(self):
        self.s3.upload("bucket", self.file("x", b"old"))
        path = self.file("x", bytes(11 << 20))
        put = storage.Storage._put

        def broken(self, bucket, key, query, file, offset, size):
            if query.get("partNumber") == "2":
                raise storage.StorageError("the network is gone")
            return put(self, bucket, key, query, file, offset, size)

        with mock.patch.object(_storage, "PART", 5 << 20), mock.patch.object(storage.Storage, "_put", broken):
            with self.assertRaisesRegex(storage.StorageError, "the network is gone"):
                self.s3.upload("bucket", path)
        self.assertEqual(self.content("x"), b"old")
        uploads = self.s3._call("GET", "bucket", None, {"uploads": ""}, read=lambda answer: answer.read())
        self.assertNotIn(b"<Upload>", uploads)

    def test_what_is_not_there_is_a_file_not_found(self):
        for bucket, code in (("bucket", "NoSuchKey"), ("no-such-bucket", "NoSuchBucket")):
            path = os.path.join(self.folder, "new")
            with self.assertRaises(FileNotFoundError) as caught:
                self.s3.download(bucket, "missing", path)
            self.assertIsInstance(caught.exception, storage.StorageError)
            self.assertEqual((caught.exception.status, caught.exception.code), (404, code))
            self.assertEqual(os.listdir(self.folder), [])
        with self.assertRaises(FileNotFoundError):
            self.s3.ls("no-such-bucket")
        with self.assertRaises(FileNotFoundError):
            self.s3.rm("no-such-bucket", "x")
        with self.assertRaises(FileNotFoundError):
            self.s3.upload("bucket", os.path.join(self.folder, "no such file"))

    def test_a_wrong_secret_is_refused_and_not_told(self):
        wrong = storage.Storage(self.moto.endpoint, self.moto.access, "no-such-secret")
        with self.assertRaises(storage.StorageError) as caught:
            wrong.ls("bucket")
        self.assertEqual((caught.exception.status, caught.exception.code), (403, "SignatureDoesNotMatch"))
        self.assertNotIn("no-such-secret", f"{caught.exception} {wrong!r}")
        with self.assertRaises(storage.StorageError):
            wrong.exists("bucket", "x")

    def test_keys_may_come_from_functions_that_may_be_async(self):
        async def secret():
            await asyncio.sleep(0)
            return self.moto.secret

        # As of a Secret that was made of a file.
        given = storage.Storage(self.moto.endpoint, lambda: self.moto.access + "\n", secret)
        self.assertEqual(given.ls("bucket"), [])

        async def within_a_loop():
            return given.ls("bucket")

        self.assertEqual(asyncio.run(within_a_loop()), [])

    def test_keys_may_come_from_the_environment(self):
        plain = storage.Storage(self.moto.endpoint)
        keys = {"AWS_ACCESS_KEY_ID": self.moto.access, "AWS_SECRET_ACCESS_KEY": self.moto.secret}
        with mock.patch.dict(os.environ, keys):
            self.assertEqual(plain.ls("bucket"), [])
        with mock.patch.dict(os.environ, {"AWS_ACCESS_KEY_ID": ""}):
            with self.assertRaisesRegex(storage.NoCredentialsError, "give access_key and secret_key"):
                plain.ls("bucket")

    def test_threads_and_pickles_may_share_one(self):
        path = self.file("x", b"1")
        copy = pickle.loads(pickle.dumps(self.s3))
        self.assertEqual(copy, self.s3)
        with copy:
            threads = [
                threading.Thread(target=copy.upload, args=("bucket", path), kwargs={"key": str(number)})
                for number in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(len(self.s3.ls("bucket")), 8)


if __name__ == "__main__":
    unittest.main()
