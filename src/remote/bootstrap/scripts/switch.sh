# The environment that was made is the one that runs find from now on: by one rename, after its last step.
# Expects: env, environment (its name), env_json (the variables of runs).
set -u
cd "$skyward_home" || exit 1
(umask 077 && write "$skyward_env/.skyward/env.json" "$skyward_env_json") || die "the environment of runs cannot be written to $skyward_env"
if [ ! -L venv ] && { [ -e venv ] || [ -f env.json ]; }; then
  # An older release made a folder, and the variables beside it: until the rename runs find both as they were.
  mkdir -p venv/.skyward && chmod 700 venv/.skyward || die "the environment $skyward_home/venv cannot be taken over"
  if [ ! -L env.json ] && [ -f env.json ]; then cp -p env.json venv/.skyward/env.json || die "$skyward_home/env.json cannot be copied"; fi
fi
if [ ! -L env.json ]; then
  rm -f env.json.tmp.$$
  ln -s venv/.skyward/env.json env.json.tmp.$$ && mv -f env.json.tmp.$$ env.json || die "$skyward_home/env.json cannot be replaced"
fi
if [ "$(readlink venv 2>/dev/null)" != "envs/$skyward_environment" ]; then
  former=
  if [ ! -L venv ] && [ -e venv ]; then
    former=envs/.former.$$
    mv venv "$former" || die "$skyward_home/venv cannot be replaced"
  fi
  rm -f venv.tmp.$$
  ln -s "envs/$skyward_environment" venv.tmp.$$ || die "the environment $skyward_env cannot be switched to"
  # Without -T an old link to a folder would be followed.
  mv -Tf venv.tmp.$$ venv 2>/dev/null || { rm -f venv.tmp.$$ && ln -sfn "envs/$skyward_environment" venv; } ||
    die "the environment $skyward_env cannot be switched to"
  if [ -n "$former" ]; then (rm -rf "$former" >/dev/null 2>&1 &); fi
fi
[ "$(readlink venv)" = "envs/$skyward_environment" ] || die "$skyward_home/venv does not lead to $skyward_env"
say environment "$skyward_environment"
