//! What real programs print when they fail, and what is made of it.

use super::*;

const UV_TYPO: &str = "Using Python 3.12.3 environment at: /opt/skyward/venv
  × No solution found when resolving dependencies:
  ╰─▶ Because no-such-package-xyz was not found in the package registry and
      you require no-such-package-xyz, we can conclude that your requirements
      are unsatisfiable.
the Python packages could not be installed";
const UV_DNS: &str = "error: Failed to fetch: `https://index.example/simple/six/`
  Caused by: Request failed after 3 retries
  Caused by: error sending request for url (https://index.example/simple/six/)
  Caused by: client error (Connect)
  Caused by: dns error: failed to lookup address information: Temporary failure in name resolution
the Python packages could not be installed";
const UV_CERTIFICATE: &str = "  × Failed to fetch: `https://index.example/simple/six/`
  ├─▶ Request failed after 3 retries
  ├─▶ error sending request for url (https://index.example/simple/six/)
  ╰─▶ invalid peer certificate: UnknownIssuer
the Python packages could not be installed";
const UV_BUILD: &str = "  × Failed to build `mpi4py==4.0.0`
  ├─▶ The build backend returned an error
  ╰─▶ Call to `setuptools.build_meta.build_wheel` failed (exit status: 1)

      hint: This usually indicates a problem with the package or the build environment.
the Python packages could not be installed";
const UV_BUILD_LOG: &str = "  × Failed to build `thing==1.0`
  ├─▶ The build backend returned an error
  ╰─▶ Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit status: 1)

      [stderr]
      Traceback (most recent call last):
        File \"<string>\", line 14, in <module>
      ModuleNotFoundError: No module named 'numpy'

      hint: This usually indicates a problem with the package or the build environment.
the Python packages could not be installed";
const UV_13_TYPO: &str = "Using Python 3.11.7 environment at: /opt/skyward/venv
error: No solution found when resolving dependencies
  cause: Because no-such-package-xyz was not found in the package registry and you require no-such-package-xyz, we can conclude that your requirements are unsatisfiable.
the Python packages could not be installed";
const UV_13_DNS: &str = "error: Failed to fetch: https://index.example/simple/six/
  cause: error sending request for url (https://index.example/simple/six/)
  cause: client error (Connect)
  cause: dns error
  cause: error resolving DNS
  cause: failed to lookup address information: Name or service not known
the Python packages could not be installed";
const UV_13_CERTIFICATE: &str = "error: Failed to fetch: https://index.example/simple/six/
  cause: error sending request for url (https://index.example/simple/six/)
  cause: client error (Connect)
  cause: invalid peer certificate: UnknownIssuer
the Python packages could not be installed";
const UV_13_BUILD: &str = "Resolved 1 package in 2ms
   Building thing==1.0
error: Failed to build `thing==1.0`
  cause: The build backend returned an error
  cause: Call to `bk.build_wheel` failed (exit status: 1)

         [stderr]
         Traceback (most recent call last):
           File \"<string>\", line 11, in <module>
         ModuleNotFoundError: No module named 'numpy'

hint: This error likely indicates that `thing@1.0` depends on `numpy`, but doesn't declare it as a build dependency.
the Python packages could not be installed";
const PIP_TYPO: &str =
    "ERROR: Could not find a version that satisfies the requirement no-such-package-xyz (from versions: none)
ERROR: No matching distribution found for no-such-package-xyz

[notice] A new release of pip is available: 24.0 -> 25.1
[notice] To update, run: pip install --upgrade pip";
const PIP_CERTIFICATE: &str = "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in certificate chain (_ssl.c:1007)'))': /simple/six/
Could not fetch URL https://index.example/simple/six/: There was a problem confirming the ssl certificate: HTTPSConnectionPool(host='index.example', port=443): Max retries exceeded with url: /simple/six/ - skipping
ERROR: Could not find a version that satisfies the requirement six (from versions: none)
ERROR: No matching distribution found for six";
const PIP_DNS: &str = "WARNING: Retrying (Retry(total=1, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f3a5c0d1e50>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/six/
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f3a5c0d1f10>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/six/
ERROR: Could not find a version that satisfies the requirement six (from versions: none)
ERROR: No matching distribution found for six";
const PIP_TIMEOUT: &str = "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'ConnectTimeoutError(<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>, 'Connection to index.example timed out. (connect timeout=15)')': /simple/six/
ERROR: No matching distribution found for six";
const PIP_RECOVERED: &str = "WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after connection broken by 'ReadTimeoutError(\"HTTPSConnectionPool(host='index.example', port=443): Read timed out.\")': /simple/six/
ERROR: Could not find a version that satisfies the requirement six==99 (from versions: 1.15.0, 1.16.0)
ERROR: No matching distribution found for six==99";
const APT_TYPO: &str = "Reading package lists...
Building dependency tree...
E: Unable to locate package no-such-package
these packages could not be installed: no-such-package";
const APT_DNS: &str = "Ign:1 http://mirror.example/debian bookworm InRelease
Err:1 http://mirror.example/debian bookworm InRelease
  Temporary failure resolving 'mirror.example'
W: Failed to fetch http://mirror.example/debian/dists/bookworm/InRelease  Temporary failure resolving 'mirror.example'
W: Some index files failed to download. They have been ignored, or old ones used instead.
E: Unable to locate package git
these packages could not be installed: git";
const APT_CERTIFICATE: &str = "Err:1 https://mirror.example/debian bookworm InRelease
  Certificate verification failed: The certificate is NOT trusted. The certificate issuer is unknown.  Could not handshake: Error in the certificate verification. [IP: 10.0.0.7 443]
E: The repository 'https://mirror.example/debian bookworm InRelease' is not signed.
the lists of packages could not be updated (apt-get update)";
const GIT_CERTIFICATE: &str = "Cloning into 'x'...
fatal: unable to access 'https://git.example/team/x.git/': server certificate verification failed. CAfile: none CRLfile: none";
const GIT_OPENSSL: &str = "fatal: unable to access 'https://git.example/x.git/': SSL certificate problem: unable to get local issuer certificate";
const GIT_DNS: &str =
    "fatal: unable to access 'https://git.example/x.git/': Could not resolve host: git.example";
const CURL_CERTIFICATE: &str =
    "curl: (60) SSL certificate problem: self-signed certificate in certificate chain
More details here: https://curl.se/docs/sslcerts.html

curl failed to verify the legitimacy of the server and therefore could not
establish a secure connection to it.";
const CURL_REFUSED: &str =
    "curl: (7) Failed to connect to proxy.example port 3128 after 2 ms: Couldn't connect to server";
const GO_CERTIFICATE: &str = "Get \"https://registry.example/v2/\": tls: failed to verify certificate: x509: certificate signed by unknown authority";
const SNIPPET: &str = "to-err\nthe snippet for variable \"BROKEN\" failed with exit code 3";

#[test]
fn the_line_that_tells_the_most_and_the_cause() {
    let table: &[(&str, Option<Cause>, &str)] = &[
        (
            UV_TYPO,
            None,
            "No solution found when resolving dependencies: Because no-such-package-xyz was not found in the package registry and you require no-such-package-xyz, we can conclude that your requirements are unsatisfiable.",
        ),
        (
            UV_DNS,
            Some(Cause::Unreachable),
            "error: Failed to fetch: `https://index.example/simple/six/`: dns error: failed to lookup address information: Temporary failure in name resolution",
        ),
        (
            UV_CERTIFICATE,
            Some(Cause::Certificates),
            "Failed to fetch: `https://index.example/simple/six/`: invalid peer certificate: UnknownIssuer",
        ),
        (
            UV_BUILD,
            None,
            "Failed to build `mpi4py==4.0.0`: Call to `setuptools.build_meta.build_wheel` failed (exit status: 1)",
        ),
        (
            UV_BUILD_LOG,
            None,
            "Failed to build `thing==1.0`: ModuleNotFoundError: No module named 'numpy'",
        ),
        (
            UV_13_TYPO,
            None,
            "error: No solution found when resolving dependencies: Because no-such-package-xyz was not found in the package registry and you require no-such-package-xyz, we can conclude that your requirements are unsatisfiable.",
        ),
        (
            UV_13_DNS,
            Some(Cause::Unreachable),
            "error: Failed to fetch: https://index.example/simple/six/: failed to lookup address information: Name or service not known",
        ),
        (
            UV_13_CERTIFICATE,
            Some(Cause::Certificates),
            "error: Failed to fetch: https://index.example/simple/six/: invalid peer certificate: UnknownIssuer",
        ),
        (
            UV_13_BUILD,
            None,
            "error: Failed to build `thing==1.0`: ModuleNotFoundError: No module named 'numpy'",
        ),
        (
            PIP_TYPO,
            None,
            "ERROR: No matching distribution found for no-such-package-xyz",
        ),
        (
            PIP_CERTIFICATE,
            Some(Cause::Certificates),
            "Could not fetch URL https://index.example/simple/six/: There was a problem confirming the ssl certificate",
        ),
        (
            PIP_DNS,
            Some(Cause::Unreachable),
            "WARNING: Retrying (Retry(total=0",
        ),
        (
            PIP_TIMEOUT,
            Some(Cause::Unreachable),
            "WARNING: Retrying (Retry(total=0",
        ),
        (
            PIP_RECOVERED,
            None,
            "ERROR: No matching distribution found for six==99",
        ),
        (APT_TYPO, None, "E: Unable to locate package no-such-package"),
        (
            APT_DNS,
            Some(Cause::Unreachable),
            "W: Failed to fetch http://mirror.example/debian/dists/bookworm/InRelease",
        ),
        (
            APT_CERTIFICATE,
            Some(Cause::Certificates),
            "Certificate verification failed: The certificate is NOT trusted.",
        ),
        (
            GIT_CERTIFICATE,
            Some(Cause::Certificates),
            "fatal: unable to access 'https://git.example/team/x.git/'",
        ),
        (GIT_OPENSSL, Some(Cause::Certificates), "fatal: unable to access"),
        (GIT_DNS, Some(Cause::Unreachable), "fatal: unable to access"),
        (
            CURL_CERTIFICATE,
            Some(Cause::Certificates),
            "curl: (60) SSL certificate problem",
        ),
        (
            CURL_REFUSED,
            Some(Cause::Unreachable),
            "curl: (7) Failed to connect to proxy.example",
        ),
        (
            GO_CERTIFICATE,
            Some(Cause::Certificates),
            "Get \"https://registry.example/v2/\"",
        ),
        (
            SNIPPET,
            None,
            "the snippet for variable \"BROKEN\" failed with exit code 3",
        ),
        ("", None, ""),
        ("W: nothing but advice\n[notice] x", None, ""),
    ];
    for (output, cause, line) in table {
        let found = Diagnosis::of("failed (exit code 1)", output);
        assert_eq!(found.cause, *cause, "{found:?}");
        assert!(found.line.starts_with(line), "{found:?}");
        assert_eq!(found.line.is_empty(), line.is_empty(), "{found:?}");
        assert!(found.line.len() <= LINE && found.pattern.len() <= PATTERN);
        assert!(!found.line.contains('\n'));
    }
}

#[test]
fn each_cause_names_the_field_that_mends_it() {
    for step in ["packages", "apt", "python"] {
        let remedy = Cause::Certificates.remedy(step);
        assert!(remedy.contains("image.caBundleRef") && remedy.contains("ca-certificates in image.apt"));
        assert!(Cause::Unreachable.remedy(step).contains("image.stepsEnvFrom"));
    }
    assert!(Cause::Unreachable.remedy("packages").contains("image.pipIndexes"));
    assert!(!Cause::Unreachable.remedy("apt").contains("pipIndexes"));
}

#[test]
fn what_is_another_on_each_machine_is_no_part_of_a_pattern() {
    for (one, other) in [
        ("took 12.5s at 10:04:07", "took 3s at 23:59:59"),
        (
            "<HTTPSConnection object at 0x7f3a5c0d1e50>: refused",
            "<HTTPSConnection object at 0x7ffe0000aa10>: refused",
        ),
        (
            "connect to 10.0.0.7:443 failed",
            "connect to 192.168.178.1:8443 failed",
        ),
        (
            "cannot open /tmp/tmpq3k2x9ab/setup.py: No such file",
            "cannot open /tmp/pip-build-8s_/x/y.py: No such file",
        ),
        (
            "sha256:e3b0c44298fc1c149afb differs",
            "sha256:0011223344556677aabb differs",
        ),
        (
            "pod 6b1f9d5e-0000-4000-8000-000000000001 is gone",
            "pod 11111111-2222-4333-8444-555555555555 is gone",
        ),
        (
            "in /root/.cache/uv/builds-v0/.tmpAbC123/x",
            "in /root/.cache/uv/builds-v0/.tmpZzZ999/x",
        ),
        ("2026-11-23T03:46:15Z error", "2027-01-01T00:00:00Z error"),
        ("a   b", "a b"),
    ] {
        assert_eq!(pattern(one), pattern(other));
    }
}

#[test]
fn what_differs_in_words_differs_in_its_pattern() {
    for (one, other) in [
        (
            "No matching distribution found for torch",
            "No matching distribution found for numpy",
        ),
        (
            "E: Unable to locate package libgl1",
            "E: Unable to locate package libgl2",
        ),
        ("Temporary failure in name resolution", "Connection refused"),
        ("python3 is missing", "python is missing"),
    ] {
        assert_ne!(pattern(one), pattern(other));
    }
}

#[test]
fn whatever_a_machine_prints_is_bounded_and_no_character_is_cut() {
    let long = format!("error: {}", "ß0".repeat(500_000));
    let found = Diagnosis::of(&long, &long);
    assert!(found.line.len() <= LINE && found.pattern.len() <= PATTERN && found.ended.len() <= LINE);
    assert_eq!(Diagnosis::of("timed out", "").pattern, "timed out");
    let lines = Diagnosis::of("failed", &"× a\n  b\n".repeat(10_000));
    assert!(lines.line.len() <= LINE);
}

#[test]
fn packages_that_fail_for_the_same_server_fail_in_the_same_way() {
    let other = UV_DNS.replace("six", "numpy");
    let (one, other) = (Diagnosis::of("failed", UV_DNS), Diagnosis::of("failed", &other));
    assert_ne!(one.line, other.line);
    assert_eq!(one.pattern, other.pattern);
}
