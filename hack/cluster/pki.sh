#!/usr/bin/env bash
# Certificates and kubeconfigs of the local cluster, made anew at each `up`.
# Elliptic curves, because twelve RSA keys would take longer than the API server.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

PKI=$STATE/pki
mkdir -p "$PKI"
chmod 700 "$PKI"
cd "$PKI"

key() { openssl ecparam -genkey -name prime256v1 -noout -out "$1.key" 2>/dev/null; }

# authority NAME COMMON-NAME
authority() {
  key "$1"
  openssl req -x509 -new -key "$1.key" -subj "/CN=$2" -days 3650 -out "$1.crt" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,digitalSignature
}

# certificate NAME AUTHORITY SUBJECT USAGE [ALT-NAMES]
certificate() {
  key "$1"
  {
    echo "basicConstraints=critical,CA:FALSE"
    echo "keyUsage=critical,digitalSignature"
    echo "extendedKeyUsage=$4"
    [ -z "${5:-}" ] || echo "subjectAltName=$5"
  } >"$1.ext"
  openssl req -new -key "$1.key" -subj "$3" |
    openssl x509 -req -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -days 3650 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
  rm "$1.ext"
}

# kubeconfig FILE CERTIFICATE: everything inline, so that the file can be copied.
kubeconfig() {
  cat >"$1" <<YAML
apiVersion: v1
kind: Config
clusters:
- name: skyward
  cluster:
    server: https://$GATEWAY:6443
    certificate-authority-data: $(base64 -w0 ca.crt)
users:
- name: skyward
  user:
    client-certificate-data: $(base64 -w0 "$2.crt")
    client-key-data: $(base64 -w0 "$2.key")
contexts:
- name: skyward
  context: {cluster: skyward, user: skyward}
current-context: skyward
YAML
  chmod 600 "$1"
}

authority ca skyward-local-ca
# Its own authority: the holder of a certificate of this one may speak in
# anybody's name to an aggregated API.
authority front-proxy-ca skyward-local-front-proxy-ca
certificate front-proxy-client front-proxy-ca /CN=front-proxy-client clientAuth
certificate apiserver ca /CN=kube-apiserver serverAuth \
  "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:$GATEWAY,IP:$SERVICE_API"
certificate apiserver-kubelet ca /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
certificate kubelet-server ca "/CN=$NODE" serverAuth "DNS:$NODE,IP:$GATEWAY"
openssl ecparam -genkey -name prime256v1 -noout -out service-account.key 2>/dev/null
openssl ec -in service-account.key -pubout -out service-account.pub 2>/dev/null

certificate admin ca /O=system:masters/CN=admin clientAuth
certificate kubelet ca "/O=system:nodes/CN=system:node:$NODE" clientAuth
certificate controller-manager ca /CN=system:kube-controller-manager clientAuth
certificate scheduler ca /CN=system:kube-scheduler clientAuth
certificate proxy ca /CN=system:kube-proxy clientAuth
certificate dns ca /CN=system:coredns clientAuth
for name in kubelet controller-manager scheduler proxy dns; do kubeconfig "$PKI/$name.kubeconfig" $name; done
kubeconfig "$KUBECONFIG_ADMIN" admin
