"""Runs commands of Vast.ai's command line, each in a process of its own that is forked from this one: to import the
program takes a second of a processor.

Reads a line for each command, a list of its words in JSON; answers with a line, what it said on both streams.
"""

import json
import os
import sys
import tempfile

from vastai.cli.main import main

for line in sys.stdin:
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        child = os.fork()
        if child == 0:
            sys.argv = ["vastai", *json.loads(line)]
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(said.fileno(), 1)
            os.dup2(complained.fileno(), 2)
            sys.exit(main())
        os.waitpid(child, 0)
        answer = []
        for stream in (said, complained):
            stream.seek(0)
            answer.append(stream.read())
        print(json.dumps(answer), flush=True)
