"""Compiles what is new in a folder of packages; what is compiled of the rest comes from that of the environment in use.

    python bytecode.py FOLDER_IN_USE FOLDER

A file that is one with that of the environment in use has been compiled there. To compile all of a large environment again
would take longer than to install a package.
"""

import compileall
import os
import sys
from importlib.util import cache_from_source

# More files than these are compiled by several processes.
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
