timeout 5 bash -c '
# Needs nothing but bash: not every image has curl.
ask() {
  exec 3<>/dev/tcp/169.254.169.254/80 || exit 1
  printf "%s HTTP/1.0\r\nHost: 169.254.169.254\r\nContent-Length: 0\r\n%s\r\n\r\n" "$1" "$2" >&3
  cat <&3
}
token=$(ask "PUT /latest/api/token" "X-aws-ec2-metadata-token-ttl-seconds: 300" | tail -n 1)
ask "GET /latest/meta-data/spot/instance-action" "X-aws-ec2-metadata-token: $token" |
  sed -n "s/.*\"time\"[[:space:]]*:[[:space:]]*\"\([^\"]*\)\".*/\1/p" | grep .
'
