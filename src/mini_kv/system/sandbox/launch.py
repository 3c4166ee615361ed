"""``-c "from mini_kv.system.sandbox.launch import main; main()" POLICY PROGRAM ARGUMENTS``: a caged program.

For compilers: the policy's ``writable`` is the folder above the working one, where the build takes
shape.
"""

from __future__ import annotations

import json
import os
import sys

from mini_kv.system.sandbox.entry import CANNOT_ENTER, enter


def main() -> None:
    """Enter the policy of the first argument, become the program of the others."""
    policy, argv = json.loads(sys.argv[1]), sys.argv[2:]
    here = os.getcwd()
    policy["scratch"] = here
    policy["writable"] = [os.path.dirname(here)]
    enter(policy, policy["parent"], ())
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]} cannot be started in the sandbox: {error}\n")
        os._exit(CANNOT_ENTER)
