"""python -m logosphere"""

import sys

from logosphere.cli import main

sys.exit(main())
