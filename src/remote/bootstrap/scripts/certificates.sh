# Certificates to trust besides the machine's own.
# Expects: certificates (PEM), digest, env. Comes after bundle.sh.
set -u
directory=$skyward_env/certificates
mkdir -p "$directory" || die "the directory $directory cannot be made"
case $skyward_certificates in
  *'-----BEGIN CERTIFICATE-----'*) ;;
  *) die 'the CA bundle holds no PEM certificate: its key ca.crt must have "-----BEGIN CERTIFICATE-----" blocks' ;;
esac
write "$directory/added.crt" "$skyward_certificates
" || die "the certificates cannot be written to $directory"
write_bundle
[ -s "$directory/bundle.crt" ] || die "the certificates in $directory are empty after writing"
mark_in_environment certificates "$skyward_digest"
