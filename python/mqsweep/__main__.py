"""``python -m mqsweep`` is the command ``mqsweep``."""

import sys

from .cli import main

sys.exit(main())
