"""`python -m attnprobe`."""

import sys

from attnprobe.cli import main

sys.exit(main())
