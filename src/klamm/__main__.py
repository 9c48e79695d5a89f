"""`python -m klamm` is the console script `klamm`."""

from klamm.cli.main import main

raise SystemExit(main())
