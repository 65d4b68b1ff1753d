# Compiles what is new in an environment; the rest is taken from the environment in use.
# Expects: env, home. Comes after packages were installed.

# Answers whether `compile_new` has something to take: an environment in use of the same version of Python.
is_compiled() {
  for skyward_site in "$skyward_env"/lib/python*/site-packages; do
    skyward_compiled=$skyward_home/venv/${skyward_site#"$skyward_env"/}
    [ -d "$skyward_compiled" ] && return 0
  done
  return 1
}

# A file that is one with that of the environment in use has been compiled there. To compile all of a large environment
# again would take longer than to install a package.
compile_new() {
  "$skyward_env/bin/python" -IS - "$skyward_compiled" "$skyward_site" <<'PYTHON'
import compileall
import os
import sys
from importlib.util import cache_from_source

MANY = 100

before, now = sys.argv[1:]
missing = []
for folder, _, names in os.walk(now):
    for name in names:
        path = os.path.join(folder, name)
        if not name.endswith(".py") or os.path.exists(cache_from_source(path)):
            continue
        same = before + path[len(now):]
        try:
            if os.path.samefile(path, same):
                os.makedirs(os.path.dirname(cache_from_source(path)), exist_ok=True)
                os.link(cache_from_source(same), cache_from_source(path))
                continue
        except OSError:
            pass  # It is new, or was not compiled there.
        missing.append(path)
if len(missing) > MANY:
    compileall.compile_dir(now, quiet=2, workers=0)
else:
    for path in missing:
        compileall.compile_file(path, quiet=2)
PYTHON
}
