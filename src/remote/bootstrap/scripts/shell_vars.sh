# Snippets of the user; what they print becomes a variable of every run.
# Expects: digest, and a function `snippets` that calls `capture NAME SNIPPET` for each.
set -u
shell=$(command -v bash 2>/dev/null) || shell=/bin/sh
if [ -d "$home/venv/bin" ]; then
  PATH=$home/venv/bin:$PATH
  export PATH
fi
values=$home/bootstrap/shell_vars.values
: >"$values.tmp" || die "the captured values cannot be written to $values"
chmod 600 "$values.tmp"

capture() {
  "$shell" -c "$2" </dev/null >"$values.one" || die "the snippet for variable \"$1\" failed with exit code $?"
  size=$(wc -c <"$values.one")
  [ "$size" -le 32768 ] || die "the snippet for variable \"$1\" printed $size bytes; at most 32768 are kept"
  # Without the line feeds at the end, as the shell's $(...) does.
  value=$(cat "$values.one")
  encoded=$(printf '%s' "$value" | od -An -v -tx1 | tr -d ' \n')
  printf '%s %s\n' "$1" "$encoded" >>"$values.tmp" || die "the captured values cannot be written to $values"
  say var "$1" "$encoded"
}

(umask 077 && : >"$values.one")
snippets
rm -f "$values.one"
mv -f "$values.tmp" "$values"
mark shell_vars "$digest"
