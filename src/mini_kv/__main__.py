"""``python -m mini_kv``."""

import sys

from mini_kv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
