"""Lets `python -m server.cli` run the program."""

import sys

from server.cli.main import main

sys.exit(main())
