"""`python -m specjax`, the same as `specjax`."""

import sys

from specjax.cli import main

sys.exit(main())
