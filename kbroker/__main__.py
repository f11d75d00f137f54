"""``python -m kbroker``."""

from kbroker.cli.main import main

if __name__ == "__main__":
    main()
