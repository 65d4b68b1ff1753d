"""Storage, where the network, the service or its answers are bad; and the places that keys come from."""

import http.server
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest
from unittest import mock

from skyward import _credentials, _http, _storage, storage

CONTENT = bytes(range(256)) * 8192  # 2 MiB


class Server:
    """A server that gives one prepared answer after the other and keeps the requests."""

    def __init__(self, test, *answers):
        self.answers = list(answers)
        self.requests = []
        self.connections = set()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.connections.add(self.client_address)
                server.requests.append((self.command, self.path, dict(self.headers), body))
                server.answers.pop(0)(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        test.addCleanup(self.http.server_close)
        test.addCleanup(self.http.shutdown)
        self.endpoint = f"http://127.0.0.1:{self.http.server_port}"
        self.storage = storage.Storage(self.endpoint, "access", "secret")
        test.addCleanup(self.storage.__exit__)


def say(status, body=b"", says=None, **headers):
    """An answer; `says` is the length that it claims to have."""

    def answer(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body) if says is None else says))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)
        if says is not None:
            hang_up(handler)

    return answer


def hang_up(handler):
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)


def error(status, code, **headers):
    return say(status, f"<Error><Code>{code}</Code><Message>so it is</Message></Error>".encode(), **headers)


def page(*keys, following="", truncated=False, encoding=""):
    contents = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys)
    return say(
        200,
        f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{encoding}<IsTruncated>{str(truncated).lower()}'
        f"</IsTruncated>{contents}<NextContinuationToken>{following}</NextContinuationToken></ListBucketResult>".encode(),
    )


class Faults(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "file")
        self.folder = folder.name
        self.pauses = []
        patch = mock.patch.object(_http, "pause", self.pauses.append)
        patch.start()
        self.addCleanup(patch.stop)

    def written(self):
        self.assertEqual(os.listdir(self.folder), ["file"])
        with open(self.path, "rb") as file:
            return file.read()

    def test_a_busy_service_is_asked_again_later(self):
        server = Server(self, error(503, "SlowDown"), error(500, "InternalError"), error(429, "x"), page("a"))
        self.assertEqual(server.storage.ls("bucket"), ["a"])
        self.assertEqual(len(self.pauses), 3)
        self.assertEqual(self.pauses, sorted(self.pauses))
        self.assertLess(self.pauses[0], 0.5)

    def test_a_service_that_stays_busy_is_given_up_with_its_word(self):
        server = Server(self, *[error(503, "SlowDown")] * _http.TRIES)
        with self.assertRaisesRegex(storage.StorageError, "answered 503: SlowDown so it is"):
            server.storage.ls("bucket")
        self.assertEqual(server.answers, [])

    def test_no_answer_at_all_is_given_up(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            nobody = storage.Storage(f"http://127.0.0.1:{taken.getsockname()[1]}", "a", "s")
            with self.assertRaisesRegex(storage.StorageError, "refused"):
                nobody.rm("bucket", "key")
        self.assertEqual(len(self.pauses), _http.TRIES - 1)

    def test_a_refusal_is_not_repeated(self):
        server = Server(self, error(403, "AccessDenied"), say(403))
        with self.assertRaises(storage.StorageError) as caught:
            server.storage.ls("bucket")
        self.assertEqual((caught.exception.status, caught.exception.code), (403, "AccessDenied"))
        with self.assertRaises(storage.StorageError):
            server.storage.exists("bucket", "key")
        self.assertEqual(self.pauses, [])

    def test_a_download_goes_on_where_it_broke(self):
        part, rest = CONTENT[: 1 << 20], CONTENT[1 << 20 :]
        server = Server(
            self,
            say(200, part, says=len(CONTENT), ETag='"1"'),
            say(206, rest, ETag='"1"', Content_Range=f"bytes {len(part)}-{len(CONTENT) - 1}/{len(CONTENT)}"),
        )
        server.storage.download("bucket", "key", self.path)
        self.assertEqual(self.written(), CONTENT)
        headers = server.requests[1][2]
        self.assertEqual((headers["Range"], headers["If-Match"]), (f"bytes={len(part)}-", '"1"'))

    def test_a_download_that_gets_further_each_time_is_not_given_up(self):
        step, parts = 1 << 17, 16
        answers = [
            say(
                206 if number else 200,
                CONTENT[number * step : (number + 1) * step],
                says=len(CONTENT) - number * step,
                ETag='"1"',
                Content_Range=f"bytes {number * step}-{len(CONTENT) - 1}/{len(CONTENT)}",
            )
            for number in range(parts)
        ]
        server = Server(self, *answers)
        server.storage.download("bucket", "key", self.path)
        self.assertEqual(self.written(), CONTENT)

    def test_an_object_that_is_replaced_meanwhile_is_downloaded_anew(self):
        half = CONTENT[: 1 << 20]
        for second in ([error(412, "PreconditionFailed")], [error(416, "InvalidRange")], []):
            server = Server(self, say(200, half, says=len(CONTENT), ETag='"1"'), *second, say(200, b"new", ETag='"2"'))
            server.storage.download("bucket", "key", self.path)
            self.assertEqual(self.written(), b"new")

    def test_a_download_that_fails_leaves_the_old_file(self):
        with open(self.path, "wb") as file:
            file.write(b"old")
        server = Server(self, *[say(200, b"half", says=8)] * 9)
        with self.assertRaisesRegex(storage.StorageError, "ended after 4 of 8 bytes|IncompleteRead"):
            server.storage.download("bucket", "key", self.path)
        self.assertEqual(self.written(), b"old")
        with self.assertRaises(IsADirectoryError):
            server.storage.download("bucket", "key", self.folder)

    def test_an_upload_is_sent_whole_again_when_the_connection_breaks(self):
        server = Server(self, hang_up, say(200, ETag='"1"'))
        with open(self.path, "wb") as file:
            file.write(CONTENT)
        server.storage.upload("bucket", self.path)
        self.assertEqual([request[3] for request in server.requests], [CONTENT, CONTENT])

    def test_parts_that_cannot_be_joined_are_an_error_although_the_answer_is_200(self):
        begun = say(200, b"<R><UploadId>u</UploadId></R>")
        server = Server(self, begun, *[say(200, ETag='"<&>"')] * 2, error(200, "InternalError"), say(204))
        with open(self.path, "wb") as file:
            file.write(CONTENT)
        with mock.patch.object(_storage, "PART", len(CONTENT) // 2):
            with self.assertRaisesRegex(storage.StorageError, "so it is"):
                server.storage.upload("bucket", self.path)
        self.assertEqual([request[0] for request in server.requests], ["POST", "PUT", "PUT", "POST", "DELETE"])
        self.assertIn(b"<ETag>\"&lt;&amp;&gt;\"</ETag>", server.requests[3][3])

    def test_a_very_large_file_has_no_more_parts_than_a_storage_takes(self):
        for size in (_storage.PART + 1, 5 << 40):
            each = max(_storage.PART, -(-size // _storage.MOST_PARTS // _storage.BLOCK) * _storage.BLOCK)
            self.assertLessEqual(-(-size // each), _storage.MOST_PARTS)

    def test_connections_are_used_again_after_answers_that_are_no_success_too(self):
        server = Server(self, page(), say(404), say(204), page())
        with server.storage as store:
            store.ls("bucket")
            store.exists("bucket", "key")
            store.rm("bucket", "key")
            store.ls("bucket")
        self.assertEqual(len(server.connections), 1)

    def test_hostile_answers_are_bounded_and_no_redirect_is_followed(self):
        bomb = b'<!DOCTYPE x [<!ENTITY a "aaaa">]><ListBucketResult>&a;</ListBucketResult>'
        for answer, expected in (
            (say(200, bomb), "declares entities"),
            (say(200, b"<html>"), "no XML"),
            (say(200, b"x" * 100), "longer than 99 bytes"),
            (say(301, Location="http://127.0.0.1:1/", x_amz_bucket_region="eu-west-1"), "in the region eu-west-1"),
            (error(400, "x" * 5000), "answered 400: x{400,500}$"),
        ):
            server = Server(self, answer)
            with mock.patch.object(_storage, "LONGEST_TEXT", 99), self.assertRaisesRegex(storage.StorageError, expected):
                server.storage.ls("bucket")

    def test_a_list_that_turns_in_circles_ends(self):
        for following in ("", "same"):
            server = Server(self, *[page("a", following=following, truncated=True)] * 3)
            with self.assertRaisesRegex(storage.StorageError, "does not go on"):
                server.storage.ls("bucket")

    def test_keys_in_a_list_are_decoded_only_where_the_service_says_that_they_are_encoded(self):
        server = Server(self, page("a%2Bb+c", encoding="<EncodingType>url</EncodingType>"), page("a%2Bb+c"))
        self.assertEqual(server.storage.ls("bucket"), ["a+b c"])
        self.assertEqual(server.storage.ls("bucket"), ["a%2Bb+c"])

    def test_a_bucket_cannot_lead_to_another_host(self):
        store = storage.Storage("https://storage.example", "a", "s")
        for bucket in ("evil.example/", "a@b", "", "a", "a b", "../x", "-a"):
            with self.assertRaises(ValueError):
                store.ls(bucket)
        with self.assertRaises(ValueError):
            store.rm("bucket", "")


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class Tls(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        key, self.certificate = (os.path.join(folder.name, name) for name in ("key", "certificate"))
        kind = ["-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(
            ["openssl", "req", "-x509", *kind, "-keyout", key, "-out", self.certificate],
            check=True,
            capture_output=True,
            timeout=60,
        )
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.certificate, key)

    def test_a_company_s_authority_counts_and_a_strangers_does_not(self):
        server = Server(self, page("a"), page("a"))
        server.http.socket = self.context.wrap_socket(server.http.socket, server_side=True)
        store = storage.Storage(server.endpoint.replace("http:", "https:"), "a", "s")
        with mock.patch.dict(os.environ, {"https_proxy": "", "HTTPS_PROXY": ""}), mock.patch.object(_http, "pause") as pause:
            with mock.patch.dict(os.environ, {"SSL_CERT_FILE": self.certificate}), store:
                self.assertEqual(store.ls("bucket"), ["a"])
            with store, self.assertRaises(ssl.SSLCertVerificationError):
                store.ls("bucket")
        pause.assert_not_called()
        self.assertEqual(len(server.requests), 1, "nothing was said to a stranger")


class Places(unittest.TestCase):
    def test_the_bucket_is_in_the_name_of_the_host_where_that_can_be(self):
        for endpoint, style, bucket, host, path in (
            ("https://s3.example", False, "bucket", "bucket.s3.example", "/a%20b/c"),
            ("https://s3.example:443/", True, "bucket", "s3.example", "/bucket/a%20b/c"),
            ("https://S3.example:9000", False, "bucket", "bucket.s3.example:9000", "/a%20b/c"),
            ("https://s3.example", False, "a.b", "s3.example", "/a.b/a%20b/c"),
            ("http://10.0.0.1:80", False, "bucket", "10.0.0.1", "/bucket/a%20b/c"),
            ("http://[::1]:9000", False, "bucket", "[::1]:9000", "/bucket/a%20b/c"),
            ("http://localhost:9000", False, "bucket", "localhost:9000", "/bucket/a%20b/c"),
            ("https://x.example/storage/v1/s3", True, "bucket", "x.example", "/storage/v1/s3/bucket/a%20b/c"),
        ):
            with self.subTest(endpoint=endpoint, bucket=bucket):
                found = storage.Storage(endpoint, "a", "s", style)._place(bucket, "a b/c")
                self.assertEqual(found, (host, path))
        self.assertEqual(storage.Storage("https://x.example")._place("bucket", None), ("bucket.x.example", "/"))
        self.assertEqual(storage.Storage("https://x.example", None, None, True)._place("bucket", None)[1], "/bucket")

    def test_an_endpoint_that_is_none_is_refused(self):
        for endpoint in ("s3.example", "ftp://s3.example", "https://", "https://user:password@s3.example", ""):
            with self.assertRaisesRegex(ValueError, "the endpoint must be"):
                storage.Storage(endpoint)
        with self.assertRaisesRegex(ValueError, "both or neither"):
            storage.Storage("https://s3.example", "access")

    def test_secrets_are_not_shown(self):
        self.assertNotIn("geheim", repr(storage.R2(account_id="a", access_key="geheim", secret_key="geheim")))

    def test_each_preset_knows_its_service(self):
        keys = {"access_key": "a", "secret_key": "s"}
        with mock.patch.dict(os.environ, {"AWS_REGION": "", "AWS_DEFAULT_REGION": "eu-north-1"}):
            self.assertEqual(storage.S3().endpoint, "https://s3.eu-north-1.amazonaws.com")
        for preset, endpoint, region in (
            (storage.S3(region="us-west-2"), "https://s3.us-west-2.amazonaws.com", "us-west-2"),
            (storage.S3(region="cn-north-1"), "https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1"),
            (storage.R2(account_id="acc", **keys), "https://acc.r2.cloudflarestorage.com", "auto"),
            (storage.GCS(**keys), "https://storage.googleapis.com", "auto"),
            (storage.Wasabi(region="eu-central-1", **keys), "https://s3.eu-central-1.wasabisys.com", "eu-central-1"),
            (
                storage.Backblaze(region="us-west-004", key_id="a", app_key="s"),
                "https://s3.us-west-004.backblazeb2.com",
                "us-west-004",
            ),
            (storage.Hyperstack(api_key="k", region="CANADA-1"), "https://ca1.obj.nexgencloud.io", "us-east-1"),
        ):
            self.assertEqual((preset.endpoint, preset.region), (endpoint, region))
        with self.assertRaisesRegex(ValueError, "NORWAY-1"):
            storage.Hyperstack(api_key="k", region="NORWAY-1")

    def test_https_goes_through_the_proxy_of_the_environment(self):
        with mock.patch.dict(os.environ, {"https_proxy": "http://user:p%40ss@proxy.example:3128", "no_proxy": "near.example"}):
            tunnel = _http.connect("s3.example:9000", True, 1)
            self.assertEqual((tunnel.host, tunnel.port), ("proxy.example", 3128))
            self.assertEqual((tunnel._tunnel_host, tunnel._tunnel_port), ("s3.example", 9000))
            self.assertEqual(tunnel._tunnel_headers["Proxy-Authorization"], "Basic dXNlcjpwQHNz")
            self.assertEqual(_http.connect("near.example", True, 1).host, "near.example")

    def test_what_asks_for_keys_goes_through_the_same_proxy(self):
        with socket.create_server(("127.0.0.1", 0)) as proxy:
            answering = threading.Thread(target=lambda: heard.append(refused(proxy)))
            heard = []

            def refused(proxy):
                connection, _ = proxy.accept()
                with connection:
                    asked = connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                return asked

            answering.start()
            address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
            with mock.patch.dict(os.environ, {"https_proxy": address, "no_proxy": ""}):
                with self.assertRaises(OSError):
                    _credentials.HyperstackKey("api", "CANADA-1", "https://keys.example/v1").access()
            answering.join()
        self.assertTrue(heard[0].startswith(b"CONNECT keys.example:443 "), heard)


class Credentials(unittest.TestCase):
    def test_a_machines_role_lends_keys_until_they_expire(self):
        def lends(access, until):
            return say(200, json.dumps({"AccessKeyId": access, "SecretAccessKey": "s", "Token": "t", "Expiration": until}).encode())

        session, role = say(200, b"session"), say(200, b"the-role\n")
        server = Server(
            self, session, role, lends("1", "2000-01-01T00:00:00Z"), session, role, lends("2", "2999-01-01T00:00:00Z")
        )
        lent = _credentials.MachineRole(server.endpoint)
        self.assertEqual([lent.keys().access, lent.keys().access, lent.keys().access], ["1", "2", "2"])
        self.assertEqual(lent.keys().token, "t")
        method, path, headers, _ = server.requests[2]
        self.assertEqual((method, path), ("GET", "/latest/meta-data/iam/security-credentials/the-role"))
        self.assertEqual(headers["X-aws-ec2-metadata-token"], "session")

    def test_a_machine_without_a_role_has_no_keys(self):
        server = Server(self, say(200, b"session"), say(404))
        self.assertIsNone(_credentials.MachineRole(server.endpoint).keys())
        self.assertIsNone(_credentials.MachineRole("http://127.0.0.1:1").keys())

    def test_only_aws_is_shown_what_the_machine_may_do_there(self):
        with mock.patch.dict(os.environ, {"AWS_ACCESS_KEY_ID": ""}):
            for endpoint, is_asked in (
                ("https://s3.us-east-1.amazonaws.com", True),
                ("https://s3.cn-north-1.amazonaws.com.cn", True),
                ("https://amazonaws.com.evil.example", False),
                ("https://evil-amazonaws.com", False),
            ):
                store = storage.Storage(endpoint)
                store._state.role = mock.Mock()
                try:
                    store._keys()
                except storage.NoCredentialsError:
                    pass
                self.assertEqual(store._state.role.keys.called, is_asked, endpoint)

    def test_hyperstack_makes_a_pair_of_keys_and_the_end_removes_it(self):
        made = say(200, json.dumps({"id": 7, "access_key": "AK", "secret_key": "SK"}).encode())
        server = Server(self, made, say(200), made)
        key = _credentials.HyperstackKey("api", "CANADA-1", server.endpoint + "/v1")
        self.assertEqual((key.access(), key.secret()), ("AK", "SK"))
        key.remove()
        key.remove()
        self.assertEqual(key.access(), "AK")
        first, second, _ = server.requests
        self.assertEqual(first[:2], ("POST", "/v1/object-storage/access-keys"))
        self.assertEqual(first[2]["api_key"], "api")
        self.assertEqual(json.loads(first[3])["region"], "CANADA-1")
        self.assertEqual(second[:2], ("DELETE", "/v1/object-storage/access-keys/7"))

    def test_what_an_async_function_raises_is_raised(self):
        async def fails():
            raise KeyError("vault")

        with self.assertRaisesRegex(KeyError, "vault"):
            _credentials.resolve(fails)


if __name__ == "__main__":
    unittest.main()
