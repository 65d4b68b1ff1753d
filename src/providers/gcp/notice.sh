timeout 5 bash -c '
# Needs nothing but bash: not every image has curl.
exec 3<>/dev/tcp/169.254.169.254/80 || exit 1
printf "GET /computeMetadata/v1/instance/preempted HTTP/1.0\r\nHost: metadata.google.internal\r\nMetadata-Flavor: Google\r\n\r\n" >&3
tail -n 1 <&3 | grep -qx TRUE || exit 1
# Of the 30 seconds that Google gives some have passed.
date -u -d "+25 seconds" +%Y-%m-%dT%H:%M:%SZ
'
