umask 022;
home=$1; name=$2; want=$3; unpack=$4;
tmp="$home/bin/.$name.$$";
trap "rm -f \"\$tmp\"" EXIT;
$unpack > "$tmp" || { echo "the agent did not get to $home/bin whole: is the disk full?" >&2; exit 1; };
if command -v sha256sum > /dev/null 2>&1; then got=$(sha256sum "$tmp" | cut -d" " -f1);
elif command -v shasum > /dev/null 2>&1; then got=$(shasum -a 256 "$tmp" | cut -d" " -f1);
elif command -v openssl > /dev/null 2>&1; then got=$(openssl dgst -sha256 -r "$tmp" | cut -d" " -f1);
else echo "the machine has no sha256sum, shasum or openssl to verify the agent with" >&2; exit 1; fi;
if [ "$got" != "$want" ]; then echo "the agent arrived damaged: SHA-256 $got instead of $want" >&2; exit 1; fi;
chmod 755 "$tmp" && mv -f "$tmp" "$home/bin/$name"
