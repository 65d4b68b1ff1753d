# The certificates to trust: one file with those of the machine and those that the Pool adds, which are in added.crt.
# Expects: env. Some scripts that it comes before have the user's variables.

write_bundle() {
  skyward_folder=$skyward_env/certificates
  for skyward_system in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem ''; do
    if [ -s "$skyward_system" ]; then break; fi
  done
  {
    if [ -n "$skyward_system" ]; then cat "$skyward_system"; fi
    printf '\n'
    cat "$skyward_folder/added.crt"
  } >"$skyward_folder/bundle.crt.tmp.$$" && mv -f "$skyward_folder/bundle.crt.tmp.$$" "$skyward_folder/bundle.crt" ||
    die "the certificates cannot be written to $skyward_folder"
}

# Debian's ca-certificates may have come after the certificates of the Pool, as an entry of image.apt or with another
# package. Without the machine's own, programs would trust those of the Pool alone.
renew_bundle() {
  if [ -s "$skyward_env/certificates/added.crt" ]; then write_bundle; fi
}
