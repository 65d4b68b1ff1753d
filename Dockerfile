# The operator image, for people who have Docker. Nothing in this repository
# uses it: `make images` builds the same image without Docker
# (hack/images/operator.sh), and that one is what the tests run. This file is
# UNTESTED where it was written, for want of a Docker daemon.
#
#   docker build -t skyward.dev/operator:dev .

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# The agent is linked statically, because a machine has whatever C library it
# has; an explicit --target keeps these flags away from the operator's build.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    target="$(uname -m)-unknown-linux-gnu" \
    && cargo build --locked --release -p skyward --bin skyward \
    && RUSTFLAGS='-C target-feature=+crt-static' \
       cargo build --locked -p skyward-agent --bin skyward-agent --profile agent --target "$target" \
    && install -D target/release/skyward /out/usr/local/bin/skyward \
    && install -D "target/$target/agent/skyward-agent" "/out/usr/local/share/skyward/agent/$(uname -m)/skyward-agent" \
    && gzip -n -k "/out/usr/local/share/skyward/agent/$(uname -m)/skyward-agent" \
    && install -d -m 1777 /out/tmp \
    && ldd target/release/skyward | grep -o '/[^ ]*' | xargs -I{} cp --parents -L {} /out \
    && install -D /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ca-certificates.crt \
    && echo 'nonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin' >/out/etc/passwd \
    && echo 'hosts: files dns' >/out/etc/nsswitch.conf

# The program, the libraries it names, certificate authorities, a user.
FROM scratch
COPY --from=build /out/ /
ENV HOME=/tmp SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/skyward"]
