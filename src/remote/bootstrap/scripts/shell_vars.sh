# Snippets of the user; what they print becomes a variable of every run.
# The user's variables are here. Expects: digest, env, and a function `snippets` that calls `capture NAME SNIPPET` for each.
set -u
skyward_shell=$(command -v bash 2>/dev/null) || skyward_shell=/bin/sh
if [ -d "$skyward_env/bin" ]; then
  PATH=$skyward_env/bin:$PATH
  export PATH
fi
skyward_values=$skyward_env/.skyward/shell_vars.values
: >"$skyward_values.tmp" || die "the captured values cannot be written to $skyward_values"
chmod 600 "$skyward_values.tmp"

capture() {
  "$skyward_shell" -c "$2" </dev/null >"$skyward_values.one" || die "the snippet for variable \"$1\" failed with exit code $?"
  skyward_size=$(wc -c <"$skyward_values.one")
  [ "$skyward_size" -le 32768 ] || die "the snippet for variable \"$1\" printed $skyward_size bytes; at most 32768 are kept"
  # Without the line feeds at the end, as the shell's $(...) does.
  skyward_value=$(cat "$skyward_values.one")
  skyward_encoded=$(printf '%s' "$skyward_value" | od -An -v -tx1 | tr -d ' \n')
  printf '%s %s\n' "$1" "$skyward_encoded" >>"$skyward_values.tmp" || die "the captured values cannot be written to $skyward_values"
  say var "$1" "$skyward_encoded"
}

(umask 077 && : >"$skyward_values.one")
snippets
rm -f "$skyward_values.one"
mv -f "$skyward_values.tmp" "$skyward_values"
mark_in_environment shell_vars "$skyward_digest"
