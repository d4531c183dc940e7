"""The program `lengthwise`, run as a module."""

import sys

from server.cli.main import main

sys.exit(main())
