# Certificates to trust besides the machine's own: one file with both.
# Expects: certificates (PEM), digest, env.
set -u
directory=$skyward_env/certificates
mkdir -p "$directory" || die "the directory $directory cannot be made"
case $skyward_certificates in
  *'-----BEGIN CERTIFICATE-----'*) ;;
  *) die 'the CA bundle holds no PEM certificate: its key ca.crt must have "-----BEGIN CERTIFICATE-----" blocks' ;;
esac
system=
for file in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
  if [ -s "$file" ]; then
    system=$file
    break
  fi
done
{
  if [ -n "$system" ]; then cat "$system"; fi
  printf '\n%s\n' "$skyward_certificates"
} >"$directory/bundle.crt.tmp.$$" && mv -f "$directory/bundle.crt.tmp.$$" "$directory/bundle.crt" ||
  die "the certificates cannot be written to $directory"
[ -s "$directory/bundle.crt" ] || die "the certificates in $directory are empty after writing"
mark_in_environment certificates "$skyward_digest"
